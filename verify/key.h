/* Ed25519 keys in PEM files, as "openssl genpkey -algorithm ed25519" and "openssl pkey -pubout" write them, and signatures, 64 raw bytes as
 * "openssl pkeyutl -rawin" makes and checks them. */
#ifndef BL_VERIFY_KEY_H
#define BL_VERIFY_KEY_H

#include "formats/status.h"

#include <stdbool.h>

#define BL_SIGNATURE_BYTES 64
#define BL_KEY_NAME_ROOM 80

typedef struct bl_key bl_key;

/* Read the private key to sign with, or the public one to check with. Anything else is BL_E_INPUT and says what the file holds: a key
 * of another kind, an encrypted one, the other half, no PEM. */
bl_status bl_key_read(bl_key **out, const char *path, bool private, bl_error *err);
/* Nulls *k; NULL is fine. */
void bl_key_destroy(bl_key **k);

/* "ed25519:" and the 64 digits of the public key's 32 bytes into name (BL_KEY_NAME_ROOM bytes); the same of both halves. Returns name. */
const char *bl_key_name(const bl_key *k, char *name);
/* Sign n bytes; k is private. */
bl_status bl_key_sign(const bl_key *k, const void *data, size_t n, uint8_t signature[BL_SIGNATURE_BYTES], bl_error *err);
/* Is signature that of these n bytes by this key? */
bl_status bl_key_check(const bl_key *k, const void *data, size_t n, const uint8_t signature[BL_SIGNATURE_BYTES], bool *right,
                       bl_error *err);

#endif
