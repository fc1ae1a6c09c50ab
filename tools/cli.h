/* What every command shares: options from a table, one-line errors, exit codes, progress on a terminal. */
#ifndef BL_TOOLS_CLI_H
#define BL_TOOLS_CLI_H

#include "formats/status.h"
#include "runtime/forward.h"

#include <stdbool.h>
#include <stdio.h>

typedef enum cli_kind {
    CLI_FLAG = 1, /* bool *, set to true */
    CLI_STRING,   /* const char ** */
    CLI_PATH,     /* const char **, not empty */
    CLI_LIST,     /* cli_list *; the option may be repeated */
    CLI_INT,      /* int64_t * */
    CLI_SIZE,     /* uint64_t *, bytes: 1000, 5GB, 512MiB, 4K (decimal unless "i") */
    CLI_REAL      /* double *, finite */
} cli_kind;

#define CLI_UNSET INT64_MIN /* default of a CLI_INT to tell whether it was given */
#define CLI_LIST_MAX 256
typedef struct cli_list {
    const char *items[CLI_LIST_MAX];
    int count;
} cli_list;

typedef struct cli_option {
    const char *name; /* long name without dashes; NULL ends the table */
    cli_kind kind;
    void *value;     /* already holds the default */
    const char *arg; /* name of the argument in help, NULL for flags */
    const char *help; /* one line; say the default */
} cli_option;

typedef struct cli_command {
    const char *program;  /* "baleen convert" */
    const char *usage;    /* "SRC DST --to bf16|packed [options]" */
    const char *summary;  /* one sentence */
    const char *details;  /* further help text with newlines, or NULL */
    const cli_option *options; /* --help and (where wanted) --json are entries like any other, except --help, which is built in */
    int min_args, max_args; /* positional arguments; max_args <= 8 */
} cli_command;

/* Parse argv[1..]. Positional arguments go to args[0..*count). Returns -1 to go on, else the exit status to return at once: 0
 * after --help, 2 after wrong usage (one line on stderr). */
int cli_parse(const cli_command *c, int argc, char **argv, const char **args, int *count);
/* The text of a CLI_SIZE; 0, or -1 when it is none. */
int cli_parse_size(const char *text, uint64_t *out);
/* One line "PROGRAM: ..." on stderr for wrong usage; returns 2. */
int cli_usage_error(const cli_command *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* One line on stderr for a failure; returns its exit status (0 for BL_OK, silently). */
int cli_report(const char *program, bl_status s, const bl_error *err);
/* Flush stdout; a failure (full disk, closed pipe) is one line and status 4, else returns status. Every command ends so. */
int cli_finish(const char *program, int status);

/* --cpu LEVEL (NULL or "native" = all this CPU has) -> mask; 0 or exit status 2. */
int cli_cpu(const cli_command *c, const char *level, unsigned *mask);

/* Let the process open as many files as the system allows: checkpoints have hundreds of shards, a server has connections. */
void cli_raise_file_limit(void);

/* --device cpu, cuda or auto (NULL leaves *device) -> where to compute; 0 or exit status 2. */
int cli_device(const cli_command *c, const char *name, bl_device *device);
/* --access auto, mmap or pread; --check none, fast or full. Likewise. */
int cli_access(const cli_command *c, const char *name, bl_access *access);
int cli_check(const cli_command *c, const char *name, bl_check *check);
/* --engram auto, device, host or mapped. */
int cli_engram(const cli_command *c, const char *name, bl_engram_place *place);
extern const char *const cli_engram_places[4]; /* their names */

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
