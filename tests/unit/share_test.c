/* The rule that deals a model to ranks: whatever the layout, the ranks' parts of every tensor are equal or disjoint, begin where no
 * block is cut, and make up the whole. */
#include "verify/share.h"

#include "tests/unit/scratch.h"
#include "tests/unit/tiny_config.h"

static bl_arena arena;
static bl_config config;
static bl_slots slots;

static int build(void **state)
{
    bl_error e;
    bl_error_clear(&e);
    expect_ok(bl_config_parse(tiny_config, strlen(tiny_config), "config.json", &arena, &config, &e), &e);
    config.num_hidden_layers = 7;
    config.num_attention_heads = 8;
    config.o_groups = 4;
    config.o_lora_rank = 64;
    config.moe_intermediate_size = 256;
    config.n_routed_experts = 16;
    config.dspark_n_routed_experts = 8;
    config.has_vision = false;
    config.vocab_size = 1000;
    expect_ok(bl_slots_build(&config, "config.json", &arena, &slots, &e), &e);
    return 0;
}

static int clean(void **state)
{
    bl_arena_reset(&arena);
    return 0;
}

static bool overlap(const bl_rect *a, const bl_rect *b)
{
    return a->row < b->row + b->rows && b->row < a->row + a->rows && a->col < b->col + b->cols && b->col < a->col + a->cols;
}

/* The parts of one slot on all ranks. */
static void check_slot(const bl_layout *l, const bl_slot *s)
{
    bl_rect parts[64];
    size_t count = 0;
    uint64_t area = 0;
    for (int rank = 0; rank < l->ranks; rank++) {
        bl_share share;
        if (!bl_share_of(&config, l, true, s, rank, &share)) {
            continue;
        }
        bool known = false;
        uint8_t fine_rows, fine_cols;
        bl_layout_fine(l, s, &fine_rows, &fine_cols);
        assert_int_equal(share.part.row % (32u >> fine_rows) == 0 || share.part.rows == 0 || s->cut == BL_CUT_TABLE, 1);
        assert_int_equal(s->ndim == 2 ? share.part.col % (32u >> fine_cols) : 0, 0);
        assert_true(s->ndim == 1 || (share.cols >= share.part.cols && share.all_cols >= s->shape[1] && share.start_col >= share.part.col));
        assert_true(share.rows >= share.part.rows && share.all_rows >= s->shape[0]);
        assert_true(share.owner / (l->ranks / l->pp) == rank / (l->ranks / l->pp));
        for (size_t i = 0; i < count && !known; i++) {
            known = memcmp(&parts[i], &share.part, sizeof share.part) == 0;
            assert_true(known || !overlap(&parts[i], &share.part));
        }
        if (!known) {
            parts[count++] = share.part;
            area += share.part.rows * share.part.cols;
        }
    }
    bl_rect all = bl_slot_rect(s);
    assert_int_equal(area, all.rows * all.cols);
}

static void test_parts_make_up_the_whole(void **state)
{
    static const int degrees[] = {1, 2, 4, 8}, stages[][4] = {{7}, {3, 4}, {1, 1, 2, 3}};
    size_t fit = 0;
    for (int i = 0; i < 4 * 4 * 3 * 2; i++) {
        bl_layout l = {.tp = degrees[i % 4], .ep = degrees[i / 4 % 4], .pp = i / 16 % 3 == 2 ? 4 : i / 16 % 3 + 1,
                       .stage_layers = stages[i / 16 % 3], .engram_shared = i / 48};
        l.ranks = l.pp * (l.tp > l.ep ? l.tp : l.ep);
        l.vocab_rows = l.tp > 1 ? 1024 : 0;
        if (bl_layout_check(&config, &l, &slots, "model", NULL) != BL_OK) {
            assert_int_equal(l.tp, 8); /* more than the output groups */
            continue;
        }
        fit++;
        for (size_t k = 0; k < slots.count; k++) {
            check_slot(&l, &slots.slots[k]);
        }
    }
    assert_int_equal(fit, 3 * 4 * 3 * 2);
}

/* Cuts inside blocks: parts are whole blocks when padded, equal otherwise, and nothing else changes. */
static void test_splits(void **state)
{
    static const int inner[] = {96, 160, 224, 480}, lora[] = {64, 16, 48};
    const bl_config before = config;
    bl_arena room = {0};
    for (int i = 0; i < 4 * 3 * 3 * 2; i++) {
        bl_error e;
        bl_layout l = {.tp = i / 36 ? 4 : 2, .ep = 1, .pp = 1, .split = (bl_split)(1 + i % 3), .vocab_rows = 1024};
        l.ranks = l.tp;
        config.moe_intermediate_size = inner[i / 3 % 4];
        config.o_lora_rank = lora[i / 12 % 3];
        bl_error_clear(&e);
        expect_ok(bl_slots_build(&config, "config.json", &room, &slots, &e), &e);
        bool grouped = config.o_groups * config.o_lora_rank % (32 * l.tp) != 0;
        bl_status s = bl_layout_check(&config, &l, &slots, "model", &e);
        assert_int_equal(s, grouped && l.split == BL_SPLIT_PAD ? BL_E_USAGE : BL_OK);
        for (size_t k = 0; s == BL_OK && k < slots.count; k++) {
            const bl_slot *slot = &slots.slots[k];
            bl_remedy r = bl_layout_remedy(&l, slot);
            bool cols = slot->cut == BL_CUT_INNER_COLS || slot->cut == BL_CUT_GROUP_COLS;
            bool inside = slot->cut == BL_CUT_INNER || slot->cut == BL_CUT_INNER_COLS ? config.moe_intermediate_size % (32 * l.tp) != 0
                          : slot->cut == BL_CUT_GROUPS || slot->cut == BL_CUT_GROUP_COLS ? grouped : false;
            bl_remedy want = l.split == BL_SPLIT_PAD ? BL_REMEDY_PAD : l.split == BL_SPLIT_EXPAND && !cols ? BL_REMEDY_EXPAND : BL_REMEDY_BF16;
            bl_share share;
            assert_int_equal(r, inside ? want : BL_REMEDY_NONE);
            check_slot(&l, slot);
            assert_true(bl_share_of(&config, &l, true, slot, l.tp - 1, &share));
            uint64_t part = cols ? share.cols : share.rows, held = cols ? share.part.cols : share.part.rows;
            assert_true(r != BL_REMEDY_PAD || part % 32 == 0);
            assert_true(r < BL_REMEDY_EXPAND || (part == held && part * (uint64_t)l.tp == (cols ? slot->shape[1] : slot->shape[0])));
        }
    }
    config = before;
    expect_ok(bl_slots_build(&config, "config.json", &arena, &slots, NULL), NULL);
    bl_arena_reset(&room);
}

static void test_experts_follow_the_rank(void **state)
{
    const bl_layout l = {.tp = 8, .ep = 2, .pp = 1, .ranks = 8, .vocab_rows = 1024};
    for (size_t k = 0; k < slots.count; k++) {
        bl_share share;
        if (slots.slots[k].expert >= 0 && slots.slots[k].group == BL_GROUP_MODEL) {
            assert_int_equal(bl_share_of(&config, &l, true, &slots.slots[k], 3, &share), slots.slots[k].expert < 8);
            assert_int_equal(bl_share_of(&config, &l, true, &slots.slots[k], 4, &share), slots.slots[k].expert >= 8);
            assert_int_equal(share.first_expert, 8);
        }
    }
}

/* A released table over four ranks: 2 rows of padding, behind the last row of the last rank. */
static void test_the_released_engram_rows(void **state)
{
    const bl_layout l = {.tp = 4, .ep = 4, .pp = 1, .ranks = 4, .vocab_rows = 1024};
    const uint64_t rows = 384016682, each = 96004171;
    for (size_t k = 0; k < slots.count; k++) {
        bl_slot s = slots.slots[k];
        if (s.cut != BL_CUT_TABLE) {
            continue;
        }
        s.shape[0] = rows;
        for (int rank = 0; rank < 4; rank++) {
            bl_share share;
            assert_true(bl_share_of(&config, &l, true, &s, rank, &share));
            assert_int_equal(share.start, (uint64_t)rank * each);
            assert_int_equal(share.rows, each);
            assert_int_equal(share.part.rows, rank < 3 ? each : each - 2);
            assert_int_equal(share.all_rows, rows + 2);
            assert_int_equal(rows - 1 >= share.part.row && rows - 1 - share.part.row < share.part.rows, rank == 3);
            assert_true(rank < 3 || rows - 1 - share.part.row == 96004168);
        }
    }
}

static void refused(bl_layout l, const char *says)
{
    bl_error e;
    bl_error_clear(&e);
    l.ranks = l.pp * (l.tp > l.ep ? l.tp : l.ep);
    expect_failure(bl_layout_check(&config, &l, &slots, "model", &e), &e, BL_E_USAGE, says);
}

static void test_refusals(void **state)
{
    static const int short_stages[] = {3, 3}, empty_stage[] = {7, 0};
    refused((bl_layout){.tp = 8, .ep = 1, .pp = 1, .vocab_rows = 1024}, "output groups cannot be dealt evenly; --tp can be 1, 2, 4");
    refused((bl_layout){.tp = 3, .ep = 1, .pp = 1}, "heads cannot be dealt evenly");
    refused((bl_layout){.tp = 2, .ep = 1, .pp = 1}, "embed.weight|--pad-vocab 32 makes them 1024");
    refused((bl_layout){.tp = 1, .ep = 16, .pp = 1}, "dspark_n_routed_experts|it can be 1, 2, 4, 8");
    refused((bl_layout){.tp = 1, .ep = 1, .pp = 2, .stage_layers = short_stages}, "6 layers, the model has 7");
    refused((bl_layout){.tp = 1, .ep = 1, .pp = 2, .stage_layers = empty_stage}, "cannot have 0 layers");
    refused((bl_layout){.tp = 2, .ep = 1, .pp = 1, .vocab_rows = 999}, "cannot be padded to 999 rows");
}

int main(void)
{
    static const struct CMUnitTest tests[] = {cmocka_unit_test(test_parts_make_up_the_whole), cmocka_unit_test(test_splits),
                                              cmocka_unit_test(test_experts_follow_the_rank), cmocka_unit_test(test_the_released_engram_rows),
                                              cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, build, clean);
}
