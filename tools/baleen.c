/* baleen: one program, a command per job. */
#include "tools/cli.h"

#include <string.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} commands[] = {
    {"bench", cmd_bench, "measure the hot paths beside what this machine can do"},
    {"bucket", cmd_bucket, "deal a checkpoint to weight-sync buckets"},
    {"convert", cmd_convert, "cast a checkpoint to BF16, encode it back, or pack it"},
    {"generate", cmd_generate, "continue a text, or answer a message"},
    {"inspect", cmd_inspect, "what a checkpoint, packed model, file or tokenizer holds"},
    {"logits", cmd_logits, "what the model says at every position of given token ids"},
    {"merge", cmd_merge, "put a packed model's ranks together to one checkpoint"},
    {"synth", cmd_synth, "write a random checkpoint of any shape"},
    {"verify", cmd_verify, "prove a checkpoint or packed model, or compare two"},
    {NULL, NULL, NULL},
};

static void print_help(void)
{
    printf("usage: baleen COMMAND [arguments]\n\n");
    for (size_t i = 0; commands[i].name; i++) printf("  %-10s %s\n", commands[i].name, commands[i].summary);
    printf("\n'baleen COMMAND --help' documents each. 'baleen --version' prints the version.\n");
}

int main(int argc, char **argv)
{
    static const cli_command whole = {.program = "baleen"};
    char program[32];
    cli_begin();
    if (argc < 2) return cli_usage_error(&whole, "no command given");
    for (size_t i = 0; commands[i].name; i++) {
        if (strcmp(argv[1], commands[i].name)) continue;
        snprintf(program, sizeof program, "baleen %s", argv[1]);
        return cli_finish(program, commands[i].run(argc - 1, argv + 1));
    }
    const bool help = !strcmp(argv[1], "--help") || !strcmp(argv[1], "help"), version = !strcmp(argv[1], "--version");
    if (!help && !version) return cli_usage_error(&whole, "unknown %s '%.80s'", argv[1][0] == '-' ? "option" : "command", argv[1]);
    if (argc > 2) return cli_usage_error(&whole, "%s takes no argument, not '%.80s'", argv[1], argv[2]);
    if (help) print_help();
    else printf("baleen %s\n", BL_VERSION);
    return cli_finish("baleen", 0);
}
