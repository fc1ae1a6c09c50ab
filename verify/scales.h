/* The float32 scales of fp8 weights, looked at before anything is concluded from them; where scales are kept aside. */
#ifndef BL_VERIFY_SCALES_H
#define BL_VERIFY_SCALES_H

#include "verify/bind.h"

/* The file beside a cast that holds the scales of cast weights, and in a packed model those of weights that it decoded: a safetensors
 * file of the E8M0 tensors under their released names. It is not called .safetensors, because many readers of a checkpoint folder take
 * every file of that name, whatever the index says, and would meet tensors they do not know. */
#define BL_SCALES_NAME "scales.source.st"

typedef struct bl_scale_place {
    const bl_weight *weight; /* NULL: none */
    uint64_t index;          /* in the grid */
    float value;
} bl_scale_place;

/* Of weights with F32 scales. A cast rounds the values of a weight with a scale that is no power of two. */
typedef struct bl_scale_survey {
    uint64_t all_weights;     /* that there are */
    uint64_t weights, scales; /* read */
    uint64_t rounded_weights, rounded_scales; /* with, and being, no power of two */
    bl_scale_place first_rounded;
    bl_scale_place first_bad; /* outside BL_F32_SCALE_MIN..MAX: no sound weight has it */
} bl_scale_survey;

/* Read the F32 scales of b, the binding of c (one 16384th of the weights of 128x128 blocks): of every weight, or of `most` weights at
 * equal distances. */
bl_status bl_scales_survey(const bl_checkpoint *c, const bl_binding *b, uint64_t most, bl_scale_survey *out, bl_error *err);
#define BL_SCALES_ALL UINT64_MAX

/* Does the config call the scales ue8m0 although some are no powers of two? A problem that names the first one, as with bl_bind. */
bl_status bl_scales_claim(const bl_checkpoint *c, const bl_scale_survey *s, bl_problem_fn on_problem, void *arg, bl_error *err);
/* BL_E_INPUT, naming the first scale that no sound weight has. */
bl_status bl_scales_sound(const bl_checkpoint *c, const bl_scale_survey *s, bl_error *err);

#endif
