/* What every command shares beside its options: one-line errors, exit codes, words of common options, progress on a terminal. */
#ifndef BL_TOOLS_CLI_H
#define BL_TOOLS_CLI_H

#include "formats/status.h"
#include "runtime/forward.h"
#include "tools/options.h"

#include <stdbool.h>
#include <stdio.h>

/* One line on stderr for a failure; returns its exit status (0 for BL_OK, silently). err may be NULL, when s says it all. */
int cli_report(const char *program, bl_status s, const bl_error *err);
/* The first thing a program does. Lets it open as many files as the system allows: checkpoints have hundreds of shards, a server has
 * connections. A reader that goes away and a limit on sizes are errors of writing, not signals that kill. Standard streams that were
 * closed are taken, so that no file gets their numbers and with them what is printed; writing to them fails still. A mapped file that
 * another process cuts short ends the program with one line and status 4. */
void cli_begin(void);
/* The last: flush stdout; a failure (full disk, closed pipe) is one line and status 4, else returns status. */
int cli_finish(const char *program, int status);

/* Words of options, ended by NULL, each at the value that it stands for: bl_device, bl_access, bl_check, bl_engram_place. */
extern const char *const cli_devices[];
extern const char *const cli_accesses[];
extern const char *const cli_checks[];
extern const char *const cli_engram_places[];

#define CLI_JOBS_MAX 1024 /* of --jobs */

/* Folder of the model used when none is named: that of the installation which the program is part of, wherever it was moved to,
 * else the one given to the build, or of the source tree. */
const char *cli_default_model(void);

/* Progress on stderr: only when stderr is a terminal and quiet is false. update() may be called from any thread, as often as it
 * likes: it prints at most ten times a second "what  37%  1.42 GB/s  0:12 left". */
typedef struct cli_progress cli_progress;
cli_progress *cli_progress_begin(const char *what, bool quiet);
void cli_progress_update(void *progress, uint64_t done, uint64_t total);
/* A whole line on stderr in between. p may be NULL. Thread-safe. */
void cli_progress_line(cli_progress *p, const char *line);
void cli_progress_end(cli_progress **p); /* wipes the line */

/* SIGINT and SIGTERM set a flag instead of killing the process, so that unfinished outputs are removed; a second signal
 * kills. */
void cli_catch_signals(void);
bool cli_interrupted(void);

/* The commands. */
int cmd_bench(int argc, char **argv);
int cmd_bucket(int argc, char **argv);
int cmd_convert(int argc, char **argv);
int cmd_generate(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_logits(int argc, char **argv);
int cmd_merge(int argc, char **argv);
int cmd_synth(int argc, char **argv);
int cmd_verify(int argc, char **argv);

#endif
