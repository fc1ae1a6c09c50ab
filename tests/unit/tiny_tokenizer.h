/* A small tokenizer.json of our own for tests: the 256 byte tokens (ids 3..258 in byte order), a few merges, the chat tokens. */
#ifndef BL_TESTS_TINY_TOKENIZER_H
#define BL_TESTS_TINY_TOKENIZER_H

#include <stdio.h>
#include <string.h>

enum {
    TINY_BYTE = 3, /* id of byte 0 */
    TINY_AA = 259, /* "aa", then "aaaa", "he", "ll", "hell", "hello", "Ġhello" */
    TINY_HELLO = 264,
    TINY_SPACE_HELLO = 265,
    TINY_THINK = 300,
    TINY_END_THINK,
    TINY_DSML,
    TINY_USER,
    TINY_LONG_USER, /* "<｜User｜>!" */
    TINY_SIZE
};

#define TINY_SPLITS                                                                                                       \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{N}{1,3}\"},\"behavior\":\"Isolated\",\"invert\":false},"          \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[^\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\s+(?!\\\\S)|\\\\s+\"},"               \
    "\"behavior\":\"Isolated\",\"invert\":false},"                                                                       \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}"

#define TINY_MERGES \
    "\"a a\",[\"aa\",\"aa\"],\"h e\",\"l l\",[\"he\",\"ll\"],\"hell o\",[\"\\u0120\",\"hello\"]"

#define TINY_ADDED(id, text, special)                                                                                \
    "{\"id\":" #id ",\"content\":\"" text "\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false," \
    "\"special\":" special "}"

/* Write the file into buf; returns its length. */
static inline size_t tiny_tokenizer(char *buf, size_t cap)
{
    size_t n = (size_t)snprintf(
        buf, cap,
        "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[%s,%s,%s,%s,%s,%s,%s,%s],"
        "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[]},"
        "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[%s]},"
        "\"post_processor\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":false,\"use_regex\":true},"
        "\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},"
        "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,"
        "\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":false,\"vocab\":{",
        TINY_ADDED(0, "<bos>", "true"), TINY_ADDED(1, "<eos>", "true"), TINY_ADDED(2, "<pad>", "true"),
        TINY_ADDED(300, "<think>", "false"), TINY_ADDED(301, "</think>", "false"), TINY_ADDED(302, "\uFF5CDSML\uFF5C", "false"),
        TINY_ADDED(303, "<\uFF5CUser\uFF5C>", "true"), TINY_ADDED(304, "<\uFF5CUser\uFF5C>!", "true"), TINY_SPLITS);
    int next = 256;
    for (int b = 0; b < 256; b++) {
        int itself = (b > 32 && b < 127) || (b > 160 && b != 173);
        n += (size_t)snprintf(buf + n, cap - n, "\"\\u%04x\":%d,", (unsigned)(itself ? b : next++), TINY_BYTE + b);
    }
    n += (size_t)snprintf(buf + n, cap - n,
                          "\"aa\":259,\"aaaa\":260,\"he\":261,\"ll\":262,\"hell\":263,\"hello\":264,\"\\u0120hello\":265},"
                          "\"merges\":[%s]}}",
                          TINY_MERGES);
    return n;
}

#endif
