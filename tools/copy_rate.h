/* What this machine copies in memory, to stand beside the rate of a command that copies between files. */
#ifndef BL_TOOLS_COPY_RATE_H
#define BL_TOOLS_COPY_RATE_H

/* Bytes a second that as many threads as there are CPUs, at most jobs of them (0: no limit) and 8, copy together in 16 MiB each, every
 * byte counted once: the best of three tries, fewer after a tenth of a second. *used: how many threads. 0 where that cannot be had. */
double copy_rate(int jobs, int *used);

#endif
