#include "tests/fuzz/fuzz.h"

#include "formats/utf8.h"
#include "runtime/chat.h"

#include <stdlib.h>
#include <string.h>

/* A chat request: a prompt, or a refusal that names a key. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const bl_json_limits limits = {.last_duplicate_wins = true};
    bl_json request;
    bl_error err = {0};
    if (bl_json_parse((const char *)data, size, &limits, "input", &request, &err) != BL_OK)
        return 0;
    bl_chat_options o = bl_chat_defaults();
    bl_status s = bl_chat_options_read(request, &o, &err);
    char *prompt = NULL;
    size_t n = 0;
    if (s == BL_OK) {
        o.response_format = bl_json_get(request, "response_format");
        s = bl_chat_encode(bl_json_get(request, "messages"), &o, &prompt, &n, NULL, &err);
    }
    if (s == BL_OK)
        BL_MUST(strstr(prompt, "<\uFF5Cbegin\u2581of\u2581sentence\uFF5C>") == prompt && prompt[n] == 0 && bl_utf8_check(prompt, n) == n);
    else
        BL_MUST(s == BL_E_INPUT && err.code == BL_E_INPUT && err.tensor[0] && !prompt);
    free(prompt);
    return 0;
}
