/* What the files of the output parser share. */
#ifndef BL_RUNTIME_PARSE_IMPL_H
#define BL_RUNTIME_PARSE_IMPL_H

#include "formats/arena.h"
#include "runtime/match.h"
#include "runtime/parse.h"
#include "runtime/text.h"

/* Control tokens travel in the byte stream as single bytes that UTF-8 never uses, which keeps them apart from the same letters
 * spelled in ordinary tokens. */
#define MARK_END_THINK '\xFF'
#define MARK_DSML '\xFE'
#define MARK_THINK '\xFD'

#define PARSE_CONTROLS 11

typedef enum parse_state {
    REASONING,
    ANSWER,
    PLAIN,
    DONE,
    OUTER,      /* between the invokes of a block */
    NAME,       /* in the name of an invoke */
    INNER,      /* between the parameters of an invoke */
    KEY,        /* in the head of a parameter */
    TEXT_VALUE, /* in a string parameter */
    JSON_VALUE  /* in another parameter */
} parse_state;

struct bl_parser {
    bl_parser_options o;
    bl_arena arena;
    parse_state state, opened_in; /* opened_in: where the block began, REASONING or ANSWER */
    int end_think, think, dsml; /* token ids, -1 = none */
    int controls[PARSE_CONTROLS]; /* other control tokens, -1 = none */
    bl_detok detok;
    bl_matcher spelled;           /* markers by their letters, for pushed text */
    bl_matcher reasoning, answer; /* stop strings and the beginning of a block */
    bl_matcher value;             /* the end of a parameter */
    bl_text spelling, held;       /* what spelled, and what the other matchers hold back */
    bl_text raw;                  /* the block since the last thing that became an event */
    bl_text part;                 /* tag, name, key or value being read */
    bl_text name;                 /* of the current call */
    bl_text bytes;                /* scratch */
    bl_event_kind out_kind;
    bl_text out; /* text of one kind that is not sent yet */
    int begun, ended, stop;
    int block_begun; /* value of begun when the block opened */
    bool begun_this; /* the current invoke has had its CALL_BEGIN */
    bool first_key;
};

static inline bool parse_is_mark(char c)
{
    return (unsigned char)c >= (unsigned char)MARK_THINK;
}

/* Send what has gathered. */
void bl_parse_flush(bl_parser *p);
/* Append to the text of one kind, marks spelled out. */
void bl_parse_say(bl_parser *p, bl_event_kind kind, const char *s, size_t n);
/* Append to the arguments as it is; or a piece of a string: marks spelled out, then escaped. */
void bl_parse_argue(bl_parser *p, const char *s);
void bl_parse_argue_escaped(bl_parser *p, const char *s, size_t n);
/* A JSON value as the model wrote it, or as a string when it is none, so that the arguments always parse. */
void bl_parse_argue_json(bl_parser *p, const char *s, size_t n);
void bl_parse_begin_call(bl_parser *p);
void bl_parse_end_call(bl_parser *p);

#endif
