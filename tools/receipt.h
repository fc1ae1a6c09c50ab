/* JSON receipts: whatever happens, --json prints one document. */
#ifndef BL_TOOLS_RECEIPT_H
#define BL_TOOLS_RECEIPT_H

#include <jansson.h>

/* A string of any bytes. JSON holds Unicode only: malformed UTF-8, as paths may have it, is escaped as in error lines. */
json_t *receipt_text(const char *s);
/* A number; null for infinities and NaN, which JSON lacks. */
json_t *receipt_real(double v);
/* Print j and a newline on standard output and drop it. NULL (out of memory while it was built) is an error line. Returns 0 or
 * the exit status. */
int receipt_print(const char *program, json_t *j);

#endif
