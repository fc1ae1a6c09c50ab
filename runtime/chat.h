/* From chat messages to the prompt text of DeepSeek-V4.1. The text is then tokenized whole, with added tokens. */
#ifndef BL_RUNTIME_CHAT_H
#define BL_RUNTIME_CHAT_H

#include "formats/json.h"

#include <stdbool.h>

#define BL_CHAT_EFFORT_DEFAULT 75

/* How much reasoning, and what else shapes the prompt. Borrows from the request's document. */
typedef struct bl_chat_options {
    bool thinking;              /* open the answer with <think> */
    int effort;                 /* 1..100, printed when thinking */
    bool drop_thinking;         /* leave out the reasoning of turns before the last user turn; never with tools */
    bool continue_final_message; /* the last message is an assistant's beginning: no end of sentence behind it */
    bool images;             /* image parts become the image placeholder (the pixels are the caller's); else they are refused */
    bl_json tools;           /* OpenAI "tools" list for the leading system message; NONE, null or [] = none */
    bl_json response_format; /* JSON schema (an object) to print in the leading system message; NONE or null = none */
    bl_json task;            /* quick-instruction task of the last message, a string; NONE or null = none */
} bl_chat_options;

/* The reference defaults: no thinking, effort 75, drop_thinking, no images. */
bl_chat_options bl_chat_defaults(void);

/* A reasoning effort as clients write it: minimal and low are 50, medium, high and xhigh 75, max and ultra 100, whole numbers 1..100
 * themselves; none is 0 (no thinking). Anything else is BL_E_INPUT; key names it in the error. */
bl_status bl_chat_effort(bl_json v, const char *key, int *effort, bl_error *err);

/* Read what a chat request says about these options over the defaults already in *o: reasoning_effort, reasoning {enabled, effort},
 * thinking {type} or true/false, enable_thinking, chat_template_kwargs {thinking, enable_thinking, drop_thinking, reasoning_effort},
 * tools (unless tool_choice is "none"), task, continue_final_message. An explicit thinking switch beats effort "none", which beats the
 * default; chat_template_kwargs beats the top level. null counts as absent. Other keys are not looked at; response_format is left alone,
 * since printing it is the server's choice. */
bl_status bl_chat_options_read(bl_json request, bl_chat_options *o, bl_error *err);

/* How a prompt ends, which decides how the output is to be read. */
typedef enum bl_chat_end {
    BL_CHAT_END_CLOSED = 0, /* no place for an answer: the last turn is an assistant's (complete), a leading system's or a reminder */
    BL_CHAT_END_THINK,      /* <think>: the output begins with reasoning */
    BL_CHAT_END_ANSWER,     /* </think> or an assistant's beginning: the output begins with the answer */
    BL_CHAT_END_TASK        /* a quick-instruction token: the output is plain */
} bl_chat_end;

/* Encode a list of messages: roles system, developer (a system message), user, assistant, tool, latest_reminder. *prompt is malloc'd and
 * NUL-terminated, *n its length. *end may be NULL. Message keys beyond OpenAI's: reasoning_content or reasoning, task, wo_eos, namespace
 * (on tools and calls), and on system messages tools and response_format. With o->tools or o->response_format and no leading system
 * message, an empty one is put in front.
 * BL_E_INPUT names the message and key ("messages[2].content"); images and an image placeholder in text are such errors. */
bl_status bl_chat_encode(bl_json messages, const bl_chat_options *o, char **prompt, size_t *n, bl_chat_end *end, bl_error *err);

#endif
