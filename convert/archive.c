/* A conversion whose destination is an archive: it is made beside the small files in the temporary folder, and takes its place when it
 * is complete. */
#include "convert/job.h"

#include <stdlib.h>
#include <sys/stat.h>

#define ARCHIVE_NAME ".archive" /* in the temporary folder */
#define MOST ((uint64_t)1 << 30) /* bytes of a small file: manifests are the largest */

bl_status bl_job_check_archive(const bl_job *j, const char *dst, bl_error *err)
{
    struct stat st;
    const char *what = j->kind == BL_ARCHIVE_OTHER ? "is no archive that can be written: .tar, .tar.gz, .tar.zst and .zip can"
                       : j->o->resume              ? "is an archive, which is written in one go: --resume is for folders"
                       : j->o->link                ? "is an archive, in which nothing can be linked: --link is for folders"
                       : lstat(dst, &st) == 0      ? "already exists"
                                                   : NULL;
    return what && j->kind != BL_ARCHIVE_NONE ? bl_fail(err, BL_E_USAGE, dst, NULL, -1, "%s", what) : BL_OK;
}

bl_status bl_job_put_file(bl_job *j, const char *name, bl_error *err)
{
    char *data;
    size_t n;
    const char *path = bl_job_path(j, name);
    if (!j->archive) {
        return BL_OK;
    }
    BL_TRY(path ? bl_file_slurp(path, MOST, &data, &n, err) : bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory"));
    bl_status s = bl_archive_writer_begin(j->archive, name, n, err);
    s = s == BL_OK ? bl_archive_writer_put(j->archive, data, n, err) : s;
    free(data);
    return s;
}

bl_status bl_job_put_tile(bl_job *j, const bl_tile *t, bl_error *err)
{
    const bl_plan_file *pf = &j->plan.files[t->lane];
    BL_TRY(t->offset == 0 ? bl_archive_writer_begin(j->archive, pf->name, pf->head.file_bytes, err) : BL_OK);
    return bl_archive_writer_put(j->archive, t->data, t->nbytes, err);
}

bl_status bl_job_archive(bl_job *j, const char *dst, bl_status (*fill)(void *arg, bl_error *err), void *arg, uint64_t *bytes, bl_error *err)
{
    struct stat st = {0};
    BL_TRY(bl_folder_begin(&j->out, dst, false, err));
    j->folder = bl_folder_files(j->out);
    if (bl_folder_left_over(j->out) && j->o->note) {
        j->o->note("an earlier run left something unfinished: begun anew");
    }
    const char *path = bl_job_path(j, ARCHIVE_NAME);
    bl_status s = path ? bl_archive_writer_open(&j->archive, path, j->kind, err) : bl_fail(err, BL_E_NOMEM, dst, NULL, -1, "out of memory");
    if (s == BL_OK) {
        s = fill(arg, err);
    }
    if (s == BL_OK) {
        s = bl_archive_writer_close(&j->archive, err);
    }
    bl_archive_writer_abort(&j->archive);
    if (s == BL_OK && stat(path, &st) == 0) {
        *bytes = (uint64_t)st.st_size;
    }
    if (s == BL_OK) {
        s = bl_folder_commit_file(&j->out, ARCHIVE_NAME, err);
    }
    bl_folder_abort(&j->out, false);
    return s;
}
