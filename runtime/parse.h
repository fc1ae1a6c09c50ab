/* The model's output, token by token, into reasoning, answer and tool calls. */
#ifndef BL_RUNTIME_PARSE_H
#define BL_RUNTIME_PARSE_H

#include "runtime/tokenizer.h"

#include <stdbool.h>

typedef struct bl_parser bl_parser; /* one per choice; not shared between threads */

typedef enum bl_event_kind {
    BL_EVENT_REASONING = 1, /* text */
    BL_EVENT_ANSWER,        /* text */
    BL_EVENT_CALL_BEGIN,    /* text = function name; name_space where the model wrote one */
    BL_EVENT_CALL_ARGUMENTS, /* text = the next piece of a JSON object; the pieces of a call that ends make valid JSON */
    BL_EVENT_CALL_END       /* the call is complete; one that never ends was cut off or broken */
} bl_event_kind;

/* Text is complete UTF-8, never empty, and borrowed for the time of the call. */
typedef struct bl_event {
    bl_event_kind kind;
    int call; /* 0, 1, ... for CALL events */
    const char *text;
    size_t n;
    const char *name_space; /* NULL = none */
    size_t name_space_n;
} bl_event;

typedef enum bl_section {
    BL_SECTION_REASONING = 0, /* until </think> or a block of calls */
    BL_SECTION_ANSWER,
    BL_SECTION_CALLS, /* inside a block of calls */
    BL_SECTION_DONE,  /* behind the block, or at a stop string: whatever follows is ignored */
    BL_SECTION_PLAIN  /* no structure at all: completions, quick-instruction tasks */
} bl_section;

typedef enum bl_call_mode {
    BL_CALLS_TEXT = 0, /* a block of calls is text like any other */
    BL_CALLS_PARSE,
    BL_CALLS_DROP /* recognised and left out: tools exist in the history, but none may be called */
} bl_call_mode;

typedef struct bl_parser_options {
    const bl_tokenizer *tokenizer; /* NULL only when text alone is pushed */
    bl_section start;              /* REASONING, ANSWER or PLAIN, as the prompt ends */
    bl_call_mode calls;
    const char *const *stops; /* stop strings, copied; empty ones are ignored */
    size_t stop_count;
    bool stop_in_reasoning; /* else stop strings are matched in the answer only (and in PLAIN) */
    bool keep_special;      /* PLAIN: special tokens appear as text */
    void (*event)(void *arg, const bl_event *e);
    void *arg;
} bl_parser_options;

bl_status bl_parser_create(bl_parser **out, const bl_parser_options *o, bl_error *err);
void bl_parser_destroy(bl_parser **p);

/* The next token. </think> and the DSML mark count by their id: the same letters spelled from ordinary tokens are text. Chat control
 * tokens (and special ones) are never text outside PLAIN. Text that may still become a marker or a stop string is held back.
 * BL_E_NOMEM is the only failure. */
bl_status bl_parser_push(bl_parser *p, int id);
/* The same for bytes from elsewhere, cut anywhere; here the markers count by their letters. */
bl_status bl_parser_push_text(bl_parser *p, const char *text, size_t n);
/* The output has ended: what was held back comes out. A block that broke off before the name of its first call was complete becomes
 * answer text; a call cut off later just does not end. */
bl_status bl_parser_finish(bl_parser *p);

/* Where the next token belongs; DONE means that generation can stop. */
bl_section bl_parser_section(const bl_parser *p);
/* Index of the stop string that matched, -1 = none. Its text and what follows are not part of any event. */
int bl_parser_stop(const bl_parser *p);
/* Calls that began and calls that ended. */
int bl_parser_calls_begun(const bl_parser *p);
int bl_parser_calls_ended(const bl_parser *p);

#endif
