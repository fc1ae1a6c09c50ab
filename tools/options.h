/* Options of a command from a table, which serves parsing and --help. What a row does not allow is refused in one line that names the
 * option, the value and what it takes:
 *
 *     --NAME VALUE or --NAME=VALUE, in full; options and arguments in any order; "--" ends the options.
 *     An option is given once, unless it is a list. A VALUE of its own that is itself the name of an option is a forgotten value:
 *     '--stop=--json' says that it is meant. Numbers are decimal.
 */
#ifndef BL_TOOLS_OPTIONS_H
#define BL_TOOLS_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

typedef enum cli_kind { CLI_IS_FLAG = 1, CLI_IS_STRING, CLI_IS_TEXT, CLI_IS_LIST, CLI_IS_WORD, CLI_IS_WORDS, CLI_IS_INT, CLI_IS_COUNT,
                        CLI_IS_SIZE, CLI_IS_REAL, CLI_IS_CPU } cli_kind;

/* What an option takes, and what its value points at. */
typedef struct cli_takes {
    cli_kind kind;
    int64_t least, most;
    double low, high;
    bool open; /* low itself is outside */
    const char *const *words; /* ended by NULL */
} cli_takes;

#define CLI_FLAG {CLI_IS_FLAG, 0, 0, 0, 0, false, NULL}     /* nothing; bool *, set to true */
#define CLI_STRING {CLI_IS_STRING, 0, 0, 0, 0, false, NULL} /* const char **; not empty */
#define CLI_TEXT {CLI_IS_TEXT, 0, 0, 0, 0, false, NULL}     /* const char **; may be empty */
#define CLI_LIST {CLI_IS_LIST, 0, 0, 0, 0, false, NULL}     /* cli_list *; the option may be repeated; not empty */
/* int *: the place in the list of the word given. */
#define CLI_WORD(words) {CLI_IS_WORD, 0, 0, 0, 0, false, words}
/* unsigned *: a bit, by the place in the list, for each word of those given between commas, at least one, each once. */
#define CLI_WORDS(words) {CLI_IS_WORDS, 0, 0, 0, 0, false, words}
/* int64_t *: a whole number, limits included. */
#define CLI_INT(least, most) {CLI_IS_INT, least, most, 0, 0, false, NULL}
/* int64_t *: the same with a multiplier where wanted: 1000, 64K, 128Ki. */
#define CLI_COUNT(least, most) {CLI_IS_COUNT, least, most, 0, 0, false, NULL}
/* uint64_t *: bytes, 1000, 5GB, 512MiB, 4K (decimal unless "i"); up to CLI_SIZE_MOST at most. */
#define CLI_SIZE(least, most) {CLI_IS_SIZE, least, most, 0, 0, false, NULL}
/* double *: limits included, or low excluded. */
#define CLI_REAL(low, high) {CLI_IS_REAL, 0, 0, low, high, false, NULL}
#define CLI_REAL_ABOVE(low, high) {CLI_IS_REAL, 0, 0, low, high, true, NULL}
/* unsigned *: the levels up to the one named, all of which this CPU has; the default is bl_cpu_detect(). */
#define CLI_CPU {CLI_IS_CPU, 0, 0, 0, 0, false, NULL}

#define CLI_SIZE_MOST ((int64_t)1 << 50)
/* Defaults of values that no option can set, to tell whether it was given: of CLI_INT and CLI_COUNT, and of CLI_SIZE. That of CLI_WORD
 * is -1. */
#define CLI_UNSET INT64_MIN
#define CLI_UNSET_SIZE UINT64_MAX

#define CLI_LIST_MAX 256
typedef struct cli_list {
    const char *items[CLI_LIST_MAX];
    int count;
} cli_list;

typedef struct cli_option {
    const char *name; /* long name without dashes; NULL ends the table */
    cli_takes takes;
    void *value;     /* already holds the default */
    const char *arg; /* name of the argument in help, NULL for flags */
    const char *help; /* one line; say the default */
} cli_option;

#define CLI_END {NULL, CLI_FLAG, NULL, NULL, NULL}
#define CLI_OPTIONS_MAX 64

typedef struct cli_command {
    const char *program;  /* "baleen convert" */
    const char *usage;    /* "SRC DST --to bf16|packed [options]" */
    const char *summary;  /* one sentence */
    const char *details;  /* further help text with newlines, or NULL */
    const cli_option *options; /* --help and (where wanted) --json are entries like any other, except --help, which is built in */
    int min_args, max_args; /* positional arguments */
} cli_command;

/* Parse argv[1..]. Positional arguments, none of them empty, go to args[0..*count), at most max_args. Returns -1 to go on, else the
 * exit status to return at once: 0 after --help, 2 after wrong usage (one line on stderr). */
int cli_parse(const cli_command *c, int argc, char **argv, const char **args, int *count);
/* The value of an option that is a list of its own: "tp=8,hbm=141G", keys as options are, without flags and lists. Errors name option
 * and key. text is cut up; values point into it. -1, or exit status 2. */
int cli_parse_keys(const cli_command *c, const char *option, char *text, const cli_option *keys);
/* One line "PROGRAM: ..." on stderr for wrong usage; returns 2. */
int cli_usage_error(const cli_command *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
