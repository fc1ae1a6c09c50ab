/* A tokenizer for synthetic models: byte-level BPE in Hugging Face form. Private to convert/. */
#ifndef BL_CONVERT_SYNTH_TOKENIZER_H
#define BL_CONVERT_SYNTH_TOKENIZER_H

#include "formats/status.h"

/* The text of a tokenizer.json with size ids, malloc'd: three special tokens, 256 bytes, merges learnt from a built-in text
 * (place holders when it yields no more), the released spellings of the chat tokens last. *noise and *image are two of their
 * ids. BL_E_USAGE below 268 and above 2^22 ids. */
bl_status bl_synth_tokenizer(int size, char **text, size_t *n, int *noise, int *image, bl_error *err);
/* tokenizer_config.json. */
const char *bl_synth_tokenizer_config(void);

#endif
