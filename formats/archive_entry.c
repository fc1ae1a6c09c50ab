/* Which entries of an archive may be read. */
#include "formats/archive_parts.h"

#include "formats/json.h"
#include "formats/names.h"

#include <archive.h>
#include <archive_entry.h>
#include <string.h>

#define MAX_DEPTH 8 /* folders above a file: whatever it was packed under, and a rank's */
#define MAX_LENGTH 900

/* What is wrong with a name; NULL when nothing is. */
static const char *judge_name(const char *name)
{
    int depth = 0;
    if (name[0] == '/') {
        return "has an absolute name";
    }
    if (!bl_text_is_clean(name, strlen(name)) || strlen(name) > MAX_LENGTH) {
        return "its name has control characters or is too long";
    }
    for (const char *p = name; *p;) {
        size_t n = strcspn(p, "/");
        if (n == 2 && p[0] == '.' && p[1] == '.') {
            return "its name leads out of the archive";
        }
        if (n == 0 || (n == 1 && p[0] == '.')) {
            return n ? "has '.' inside its name" : "has an empty part in its name";
        }
        p += n;
        depth += *p == '/' && p[1];
        p += *p == '/';
    }
    return depth > MAX_DEPTH ? "lies too many folders deep for a checkpoint" : NULL;
}

static const char *judge_kind(struct archive_entry *e, const char *name)
{
    if (archive_entry_hardlink(e) || archive_entry_symlink(e)) {
        return "is a link: pack the files themselves (tar --dereference --hard-dereference)";
    }
    if (archive_entry_filetype(e) == AE_IFDIR) {
        return NULL;
    }
    if (archive_entry_filetype(e) != AE_IFREG) {
        return "is neither a file nor a folder";
    }
    if (!*name || name[strlen(name) - 1] == '/') {
        return "a file without a name";
    }
    if (archive_entry_size_is_set(e) && archive_entry_size(e) < 0) {
        return "has a size below zero";
    }
    return archive_entry_is_encrypted(e) ? "is encrypted" : NULL;
}

const char *bl_entry_name(struct archive_entry *e, const char **why)
{
    const char *raw = archive_entry_pathname(e), *name = raw;
    if (!raw || !*raw) {
        *why = "a member without a usable name";
        return "";
    }
    while (name[0] == '.' && name[1] == '/') {
        name += 2 + strspn(name + 2, "/");
    }
    *why = judge_name(name);
    *why = *why ? *why : judge_kind(e, name);
    return *why ? raw : name;
}

bool bl_entry_is_weights(const char *name)
{
    return bl_stem(name, ".safetensors") > 0;
}

bool bl_entry_is_small(const char *name)
{
    return !bl_entry_is_weights(name) && bl_stem(name, ".st") == 0;
}
