/* What the files of the chat encoding share. */
#ifndef BL_RUNTIME_CHAT_IMPL_H
#define BL_RUNTIME_CHAT_IMPL_H

#include "formats/arena.h"
#include "runtime/chat.h"
#include "runtime/text.h"

#define CHAT_DSML "\uFF5CDSML\uFF5C"

typedef enum chat_role { SYSTEM, USER, TOOL, ASSISTANT, REMINDER } chat_role;

/* One message of the request. */
typedef struct chat_message {
    chat_role role;
    bl_json content, reasoning, calls, call_id, task, tools, response_format;
    bool without_end; /* wo_eos: no end of sentence behind it */
} chat_message;

/* One turn of the prompt: a message, or a run of user messages and tool results that share a turn. */
typedef struct chat_turn {
    chat_role role; /* never TOOL */
    size_t first, count; /* order[first .. first + count) are its messages; an inserted system turn has none */
    bl_json task, tools, response_format;
} chat_turn;

typedef struct chat_encoder {
    const bl_chat_options *o;
    bl_error *err;
    bl_arena arena;
    chat_message *messages;
    size_t *order;
    chat_turn *turns;
    size_t message_count, turn_count, last_user; /* last_user: turn, SIZE_MAX = none */
    bool drop; /* leave out reasoning before last_user */
    size_t images;
    bl_text out;
} chat_encoder;

/* Room for the longest key in an error ("messages[1234567].tool_calls[1234567].function.arguments"). */
#define CHAT_KEY 128

/* Fill out[i] with the member names[i] of v, one walk for all; absent and null members have the kind NONE. */
void bl_chat_pick(bl_json v, const char *const *names, bl_json *out, int n);

bl_status bl_chat_fail(bl_error *err, const char *key, const char *what);
/* The same for member ("content", or NULL for all of it) of message i. */
bl_status bl_chat_fail_at(chat_encoder *e, size_t i, const char *member, const char *what);

bool bl_chat_is_list(bl_json v); /* of at least one element */
/* The token of a quick-instruction task, NULL when there is no such task. */
const char *bl_chat_task_token(bl_json v);
bl_status bl_chat_check_task(chat_encoder *e, bl_json v, const char *key);
/* Check the messages and take them apart, then arrange them in turns. */
bl_status bl_chat_read(chat_encoder *e, bl_json messages);
bl_status bl_chat_plan(chat_encoder *e);

/* The list of tools, as the leading system message shows it: "## Tools ...". where is the key of the list ("tools"). */
bl_status bl_chat_add_tools(bl_text *t, bl_json tools, const char *where, bl_error *err);
/* The calls of an assistant message: "\n\n<DSML calls> ...". */
bl_status bl_chat_add_calls(bl_text *t, bl_json calls, const char *where, bl_error *err);

#endif
