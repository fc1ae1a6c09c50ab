#include "verify/key.h"

#include "formats/digest.h"
#include "formats/file.h"

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_KEY_FILE ((uint64_t)64 << 10)
#define PUBLIC_BYTES 32

struct bl_key {
    EVP_PKEY *pkey;
    uint8_t public[PUBLIC_BYTES];
};

static bl_status nomem(bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for a key");
}

/* The first block of a PEM file. */
typedef struct block {
    char *name, *header;
    uint8_t *data;
    long size;
} block;

static void free_block(block *b)
{
    OPENSSL_free(b->name);
    OPENSSL_free(b->header);
    OPENSSL_clear_free(b->data, (size_t)b->size);
}

/* Is a block, by its name, the half that is wanted? Says what it is instead. */
static bl_status check_block(const block *b, const char *path, bool private, bl_error *err)
{
    bool secret = strstr(b->name, "PRIVATE KEY") != NULL;
    const char *wrong = NULL;
    if (private && (!strcmp(b->name, "ENCRYPTED PRIVATE KEY") || strstr(b->header, "ENCRYPTED"))) {
        wrong = "holds an encrypted key, and nobody is asked for passwords: decrypt it first (openssl pkey -in FILE -out PLAIN)";
    } else if (private && !strcmp(b->name, "PUBLIC KEY")) {
        wrong = "holds a public key: the private one signs";
    } else if (!private && secret) {
        wrong = "holds a private key: check with the public one (openssl pkey -in FILE -pubout), and keep this where it signs";
    } else if (strcmp(b->name, private ? "PRIVATE KEY" : "PUBLIC KEY") != 0) {
        return bl_fail(err, BL_E_INPUT, path, NULL, -1, "holds '%.40s' and no %s key for Ed25519 (openssl genpkey -algorithm ed25519)",
                       b->name, private ? "private" : "public");
    }
    return wrong ? bl_fail(err, BL_E_INPUT, path, NULL, -1, "%s", wrong) : BL_OK;
}

static bl_status take_key(bl_key *k, const block *b, const char *path, bool private, bl_error *err)
{
    const uint8_t *p = b->data;
    size_t n = sizeof k->public;
    BL_TRY(check_block(b, path, private, err));
    k->pkey = private ? d2i_AutoPrivateKey(NULL, &p, b->size) : d2i_PUBKEY(NULL, &p, b->size);
    if (!k->pkey) {
        return bl_fail(err, BL_E_INPUT, path, NULL, -1, "holds a damaged key");
    }
    if (EVP_PKEY_get_id(k->pkey) != EVP_PKEY_ED25519) {
        const char *type = EVP_PKEY_get0_type_name(k->pkey);
        return bl_fail(err, BL_E_INPUT, path, NULL, -1,
                       "holds a key for %s: one for Ed25519 is needed (openssl genpkey -algorithm ed25519)",
                       type ? type : "something else");
    }
    if (EVP_PKEY_get_raw_public_key(k->pkey, k->public, &n) != 1 || n != sizeof k->public) {
        return bl_fail(err, BL_E_INPUT, path, NULL, -1, "holds a damaged key");
    }
    return BL_OK;
}

static bl_status parse(bl_key *k, const char *text, size_t n, const char *path, bool private, bl_error *err)
{
    block b = {0};
    BIO *bio = BIO_new_mem_buf(text, (int)n);
    if (!bio) {
        return nomem(err);
    }
    bl_status s = PEM_read_bio(bio, &b.name, &b.header, &b.data, &b.size) == 1
                      ? take_key(k, &b, path, private, err)
                      : bl_fail(err, BL_E_INPUT, path, NULL, -1,
                                "is no PEM file with a key (openssl genpkey -algorithm ed25519 makes one)");
    free_block(&b);
    BIO_free(bio);
    ERR_clear_error();
    return s;
}

bl_status bl_key_read(bl_key **out, const char *path, bool private, bl_error *err)
{
    char *text;
    size_t n;
    *out = NULL;
    BL_TRY(bl_file_slurp(path, MAX_KEY_FILE, &text, &n, err));
    bl_key *k = calloc(1, sizeof *k);
    bl_status s = k ? parse(k, text, n, path, private, err) : nomem(err);
    OPENSSL_cleanse(text, n);
    free(text);
    if (s != BL_OK) {
        bl_key_destroy(&k);
    }
    *out = k;
    return s;
}

void bl_key_destroy(bl_key **k)
{
    if (*k) {
        EVP_PKEY_free((*k)->pkey);
        free(*k);
        *k = NULL;
    }
}

const char *bl_key_name(const bl_key *k, char *name)
{
    memcpy(name, "ed25519:", 8);
    bl_hex_encode(name + 8, k->public, sizeof k->public);
    return name;
}

bl_status bl_key_sign(const bl_key *k, const void *data, size_t n, uint8_t signature[BL_SIGNATURE_BYTES], bl_error *err)
{
    size_t size = BL_SIGNATURE_BYTES;
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    bool ok = ctx && EVP_DigestSignInit(ctx, NULL, NULL, NULL, k->pkey) == 1 && EVP_DigestSign(ctx, signature, &size, data, n) == 1 &&
              size == BL_SIGNATURE_BYTES;
    EVP_MD_CTX_free(ctx);
    ERR_clear_error();
    return ok ? BL_OK : bl_fail(err, BL_E_INTERNAL, NULL, NULL, -1, "signing failed in libcrypto");
}

bl_status bl_key_check(const bl_key *k, const void *data, size_t n, const uint8_t signature[BL_SIGNATURE_BYTES], bool *right,
                       bl_error *err)
{
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    bool ok = ctx && EVP_DigestVerifyInit(ctx, NULL, NULL, NULL, k->pkey) == 1;
    *right = ok && EVP_DigestVerify(ctx, signature, BL_SIGNATURE_BYTES, data, n) == 1;
    EVP_MD_CTX_free(ctx);
    ERR_clear_error();
    return ok ? BL_OK : bl_fail(err, BL_E_INTERNAL, NULL, NULL, -1, "cannot check signatures with libcrypto");
}
