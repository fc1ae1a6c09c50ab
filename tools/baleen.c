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
    {"convert", cmd_convert, "cast a checkpoint to BF16, or pack it"},
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
    if (argc < 2) {
        fprintf(stderr, "baleen: no command given (see baleen --help)\n");
        return 2;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "help")) {
        print_help();
        return cli_finish("baleen", 0);
    }
    if (!strcmp(argv[1], "--version")) {
        printf("baleen %s\n", BL_VERSION);
        return cli_finish("baleen", 0);
    }
    cli_raise_file_limit();
    for (size_t i = 0; commands[i].name; i++)
        if (!strcmp(argv[1], commands[i].name)) return cli_finish("baleen", commands[i].run(argc - 1, argv + 1));
    fprintf(stderr, "baleen: unknown command '%.40s' (see baleen --help)\n", argv[1]);
    return 2;
}
