/* Barriers in shared memory, and the copies that they count: tiles, and words from another block. These come at some later moment. */
#include "kernels/cuda/sm90/instructions.cuh"

#include <vector>

namespace bl {

/* ---- barriers */

/* What is in the 8 bytes of one. */
struct counter {
    int32_t bytes; /* expected less come */
    uint8_t count, pending, phase, state;
};
enum { KNOWN_HERE = 0xb1, KNOWN_ALL = 0xb2 /* also to other blocks and copies */ };

static counter &counter_at(uint32_t bar)
{
    counter &c = *(counter *)shared_bytes(bar, 8);
    if (c.state != KNOWN_HERE && c.state != KNOWN_ALL) emu::fail("uses a barrier that is none");
    return c;
}

static counter &fenced_at(uint32_t bar)
{
    counter &c = counter_at(bar);
    if (c.state != KNOWN_ALL) emu::fail("uses a barrier before barrier_init_done");
    return c;
}

static void end_phase(counter &c)
{
    if (c.pending || c.bytes) return;
    c.pending = c.count;
    c.phase ^= 1;
}

static void arrive(counter &c)
{
    if (c.pending == 0) emu::fail("arrives at a barrier more often than it counts");
    c.pending--;
    end_phase(c);
}

static void complete(uint32_t bar, int32_t bytes)
{
    counter &c = fenced_at(bar);
    c.bytes -= bytes;
    end_phase(c);
}

static std::vector<uint32_t> initialised; /* and not yet known to all */

void barrier_init(uint32_t bar, int count)
{
    if (count < 1 || count > 255) emu::fail("gives a barrier an unlikely count");
    *(counter *)shared_bytes(bar, 8) = {0, (uint8_t)count, (uint8_t)count, 0, KNOWN_HERE};
    initialised.push_back(bar);
}

/* Of this block, whose barriers one thread initialises. */
void barrier_init_done(void)
{
    for (size_t i = initialised.size(); i-- > 0;)
        if (initialised[i] >> 24 == emu::here.rank) {
            counter_at(initialised[i]).state = KNOWN_ALL;
            initialised.erase(initialised.begin() + (long)i);
        }
}

void barrier_expect(uint32_t bar, uint32_t bytes)
{
    counter &c = counter_at(bar);
    c.bytes += (int32_t)bytes;
    arrive(c);
}

void barrier_arrive(uint32_t bar)
{
    arrive(counter_at(bar));
}

void barrier_arrive_at(uint32_t bar, int rank)
{
    const uint32_t there = emu::map_address(bar, (unsigned)rank);
    emu::later([=] { arrive(fenced_at(there)); }, true);
}

void barrier_wait(uint32_t bar, uint32_t parity)
{
    const counter &c = counter_at(bar);
    emu::wait_until("a barrier in shared memory", [&] { return c.phase != parity; });
}

void send(uint32_t to, uint32_t bar, float x, float y, float z, float w)
{
    if (to >> 24 != bar >> 24) emu::fail("sends to one block and tells another");
    emu::later([=] {
        put_floats(to, {x, y, z, w});
        complete(bar, 16);
    });
}

/* ---- tiles */

/* What is in a CUtensorMap. */
struct tile_map {
    uint64_t magic;
    const char *from;
    int64_t rows, cols, stride; /* bytes from row to row */
    int32_t box_rows;
};
enum : uint64_t { MAGIC = 0x7469'6c65'206d'6170 };
enum { UNIT = 16 /* bytes */, ROW = 128, COLS = ROW / 2 };

static CUresult encode(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *from, const cuuint64_t *size,
                       const cuuint64_t *stride, const cuuint32_t *box, const cuuint32_t *step, CUtensorMapInterleave interleave,
                       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill)
{
    if (type != CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 || rank != 2 || step[0] != 1 || step[1] != 1 || box[0] != COLS || box[1] < 1 ||
        box[1] > 256 || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE || swizzle != CU_TENSOR_MAP_SWIZZLE_128B ||
        fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE || (uintptr_t)from % 16 || stride[0] % 16 || size[0] < 1 || size[1] < 1 ||
        size[0] > 1ull << 32 || size[1] > 1ull << 32 || stride[0] >= 1ull << 40)
        return CUDA_ERROR_INVALID_VALUE;
    const tile_map m = {MAGIC, (const char *)from, (int64_t)size[1], (int64_t)size[0], (int64_t)stride[0], (int32_t)box[1]};
    static_assert(sizeof m <= sizeof *map, "");
    memset(map, 0, sizeof *map);
    memcpy(map, &m, sizeof m);
    return CUDA_SUCCESS;
}

/* Zeros where the matrix has ended. Units of a row lie exclusive-or its place among eight rows. */
static void copy_tile(uint32_t to, const tile_map &m, int64_t col, int64_t row)
{
    for (int r = 0; r < m.box_rows; r++)
        for (int u = 0; u < ROW / UNIT; u++) {
            uint16_t v[UNIT / 2] = {};
            for (int i = 0; i < UNIT / 2; i++) {
                const int64_t c = col + u * UNIT / 2 + i;
                if (row + r >= 0 && row + r < m.rows && c >= 0 && c < m.cols) memcpy(v + i, m.from + (row + r) * m.stride + c * 2, 2);
            }
            const uint32_t at = to + (uint32_t)(r * ROW + u * UNIT);
            memcpy(shared_bytes(at ^ (at >> 7 & 7) << 4, UNIT), v, UNIT);
        }
}

void load_tile_to(uint32_t to, const CUtensorMap *map, uint32_t bar, int col, int row, int mask)
{
    tile_map m;
    memcpy(&m, map, sizeof m);
    if (m.magic != MAGIC) emu::fail("copies by a map that is none");
    if (to % ROW) emu::fail("copies a tile to where it is not aligned");
    for (unsigned r = 0; mask >> r; r++) {
        if (!(mask >> r & 1)) continue;
        const uint32_t there = emu::map_address(to, r), its = emu::map_address(bar, r);
        emu::later([=] {
            copy_tile(there, m, col, row);
            complete(its, m.box_rows * ROW);
        });
    }
}

} // namespace bl

void *emu::tile_map_encoder()
{
    return (void *)bl::encode;
}
