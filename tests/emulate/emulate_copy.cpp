/*
 * The copy engine, barriers in shared memory, matrix products. See emulate.h.
 *
 * A barrier is a 64-bit word of shared memory: 16 bits of arrivals still missing, 16 bits of arrivals a phase, the parity of the phase, and
 * bytes still missing (signed: they may come before they are announced).
 */
#include <math.h>
#include <string.h>

#include <algorithm>

#include "emulate_machine.h"

enum { SWIZZLE_BYTES = 16, STEP = 16, PRODUCT_COLS = 256, WARP_ROWS = 16 };
/* Ticks at most that a thread stands at a barrier before try_wait gives up. Not many more than a copy takes: who wakes up late finds all copies landed,
 * and an announcement that came too early goes unseen. */
enum { SUSPENDED = 20000 };

/* ---- addresses -------------------------------------------------------------------------------------------------------------- */

uint32_t emulate_address(const void *shared)
{
    size_t offset = (size_t)((const uint8_t *)shared - emulate_me->cta->shared);
    if (offset >= EMULATE_SHARED_BYTES) {
        emulate_fail("an address outside of shared memory");
    }
    return emulate_me->cta->rank << 24 | (uint32_t)offset;
}

uint8_t *emulate_at(uint32_t address) { return emulate_locate(emulate_me->cta->cluster, address); }

/* The 128-byte swizzle: 16-byte chunks of a row of 128 bytes change places with the row's number modulo 8. */
static uint32_t swizzled(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

/* ---- barriers --------------------------------------------------------------------------------------------------------------- */

struct barrier {
    uint32_t missing, arrivals, parity;
    int64_t bytes;
};

static struct barrier read_barrier(const uint8_t *at)
{
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return {(uint32_t)(word & 0xffff), (uint32_t)(word >> 16 & 0xffff), (uint32_t)(word >> 32 & 1), (int64_t)word >> 33};
}

static void write_barrier(uint8_t *at, const struct barrier &barrier)
{
    uint64_t word =
        (uint64_t)barrier.missing | (uint64_t)barrier.arrivals << 16 | (uint64_t)barrier.parity << 32 | (uint64_t)barrier.bytes << 33;
    memcpy(at, &word, sizeof word);
}

static void change_barrier(uint8_t *at, uint32_t arrivals, int64_t bytes)
{
    struct barrier barrier = read_barrier(at);
    if (barrier.missing < arrivals) {
        emulate_fail("a barrier with more arrivals than a phase has");
    }
    barrier.missing -= arrivals;
    barrier.bytes += bytes;
    if (barrier.missing == 0 && barrier.bytes == 0) {
        barrier.parity ^= 1;
        barrier.missing = barrier.arrivals;
    }
    write_barrier(at, barrier);
}

void emulate_barrier_init(uint32_t barrier, uint32_t arrivals) { write_barrier(emulate_at(barrier), {arrivals, arrivals, 0, 0}); }

static struct {
    uint32_t first, end;
} lost; /* barriers that lose an arrival */

static const uint32_t *lost_count; /* a counter that loses an announcement */

void emulate_lose_count(const uint32_t *word) { lost_count = word; }

int emulate_loses_count(const uint32_t *word)
{
    int is_lost = word == lost_count;
    lost_count = is_lost ? nullptr : lost_count;
    return is_lost;
}

void emulate_lose_arrival(uint32_t first, uint32_t end)
{
    lost.first = first;
    lost.end = end;
}

void emulate_barrier_arrive(uint32_t barrier, int64_t expected_bytes)
{
    uint32_t offset = barrier & 0xffffff;
    if (offset >= lost.first && offset < lost.end) {
        lost.end = 0;
        return;
    }
    change_barrier(emulate_at(barrier), 1, expected_bytes);
}

int emulate_barrier_passed(uint32_t barrier, uint32_t parity)
{
    emulate_yield();
    return read_barrier(emulate_at(barrier)).parity != parity;
}

int emulate_barrier_try_wait(uint32_t barrier, uint32_t parity)
{
    const uint8_t *at = emulate_at(barrier);
    emulate_yield();
    uint64_t until = emulate_ticks() + emulate_patience(SUSPENDED);
    while (read_barrier(at).parity == parity && emulate_ticks() < until) {
        const unsigned *upper = (const unsigned *)at + 1; /* its parity and bytes */
        emulate_wait_word_until(upper, *upper, until);
    }
    return read_barrier(at).parity != parity;
}

/* ---- loads ------------------------------------------------------------------------------------------------------------------ */

static size_t box_bytes(const struct emulate_map &map) { return (size_t)map.box_rows * (size_t)map.box_cols * (size_t)map.element_bytes; }

/* The box at (c0, c1) of matrix c2 of a map, row by row; zeros outside. */
static void read_box(const struct emulate_map &map, int32_t c0, int32_t c1, int32_t c2, uint8_t *box_out)
{
    const int64_t size = map.element_bytes;
    memset(box_out, 0, (size_t)(map.box_rows * map.box_cols * size));
    for (int32_t r = 0; r < map.box_rows && c1 + r < map.rows; r++) {
        int64_t cols = std::min<int64_t>(map.box_cols, map.cols - c0);
        if (cols > 0) {
            memcpy(box_out + r * map.box_cols * size, map.base + c2 * map.matrix_bytes + (c1 + r) * map.row_bytes + c0 * size,
                   (size_t)(cols * size));
        }
    }
}

/* Between a box and its swizzled image in shared memory. */
static void swizzle_box(const struct emulate_map &map, struct cluster *cluster, uint32_t address, uint8_t *box, int writes)
{
    size_t bytes = box_bytes(map);
    for (size_t at = 0; at < bytes; at += SWIZZLE_BYTES) {
        uint8_t *shared = emulate_locate(cluster, swizzled(address + (uint32_t)at));
        memcpy(writes ? shared : box + at, writes ? box + at : shared, SWIZZLE_BYTES);
    }
}

void emulate_load_box(uint32_t to, const void *map_image, uint32_t barrier, uint32_t ctas, int32_t c0, int32_t c1, int32_t c2)
{
    struct emulate_map map;
    struct cluster *cluster = emulate_me->cta->cluster;
    memcpy(&map, map_image, sizeof map);
    for (uint32_t rank = 0; rank < EMULATE_MAX_CLUSTER; rank++) {
        if (ctas >> rank & 1) {
            uint32_t own_to = (to & 0xffffff) | rank << 24, own_barrier = (barrier & 0xffffff) | rank << 24;
            emulate_later([=] {
                std::vector<uint8_t> box(box_bytes(map));
                read_box(map, c0, c1, c2, box.data());
                swizzle_box(map, cluster, own_to, box.data(), 1);
                change_barrier(emulate_locate(cluster, own_barrier), 0, -(int64_t)box.size());
            });
        }
    }
}

static void check_bytes(const void *global, uint32_t bytes)
{
    if ((uintptr_t)global % SWIZZLE_BYTES != 0 || bytes % SWIZZLE_BYTES != 0 || bytes == 0) {
        emulate_fail("a bulk copy that is not a whole number of 16-byte pieces");
    }
}

void emulate_load_bytes(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
    struct cluster *cluster = emulate_me->cta->cluster;
    check_bytes(from, bytes);
    emulate_later([=] {
        memcpy(emulate_locate(cluster, to), from, bytes);
        change_barrier(emulate_locate(cluster, barrier), 0, -(int64_t)bytes);
    });
}

/* ---- stores ----------------------------------------------------------------------------------------------------------------- */

/* Reads shared memory late, and writes global memory later still. */
static void store_late(size_t bytes, std::function<void(uint8_t *)> read, std::function<void(const uint8_t *)> write)
{
    struct store *store = new struct store;
    emulate_me->open.push_back(store);
    emulate_later([=] {
        auto *buffer = new std::vector<uint8_t>(bytes);
        read(buffer->data());
        store->is_read = 1;
        emulate_later([=] {
            write(buffer->data());
            store->is_written = 1;
            delete buffer;
        });
    });
}

static void write_box(const struct emulate_map &map, int32_t c0, int32_t c1, int32_t c2, const uint8_t *box)
{
    const int64_t size = map.element_bytes;
    for (int32_t r = 0; r < map.box_rows && c1 + r < map.rows; r++) {
        int64_t cols = std::min<int64_t>(map.box_cols, map.cols - c0);
        if (cols > 0) {
            memcpy(map.base + c2 * map.matrix_bytes + (c1 + r) * map.row_bytes + c0 * size, box + r * map.box_cols * size,
                   (size_t)(cols * size));
        }
    }
}

void emulate_store_box(const void *map_image, uint32_t from, int32_t c0, int32_t c1, int32_t c2)
{
    struct emulate_map map;
    struct cluster *cluster = emulate_me->cta->cluster;
    memcpy(&map, map_image, sizeof map);
    store_late(box_bytes(map), [=](uint8_t *box) { swizzle_box(map, cluster, from, box, 0); },
               [=](const uint8_t *box) { write_box(map, c0, c1, c2, box); });
}

void emulate_store_bytes(void *to, uint32_t from, uint32_t bytes)
{
    struct cluster *cluster = emulate_me->cta->cluster;
    check_bytes(to, bytes);
    store_late(
        bytes, [=](uint8_t *buffer) { memcpy(buffer, emulate_locate(cluster, from), bytes); },
        [=](const uint8_t *buffer) { memcpy(to, buffer, bytes); });
}

void emulate_commit(void)
{
    emulate_me->groups.push_back(std::move(emulate_me->open));
    emulate_me->open.clear();
}

static int is_written(const std::vector<struct store *> &group)
{
    return std::all_of(group.begin(), group.end(), [](const struct store *store) { return store->is_written; });
}

void emulate_wait_groups(int count, int reading)
{
    std::deque<std::vector<struct store *>> &groups = emulate_me->groups;
    for (size_t i = 0; i + (size_t)count < groups.size(); i++) {
        for (const struct store *store : groups[i]) {
            emulate_wait_word(reading ? &store->is_read : &store->is_written, 0);
        }
    }
    while (!groups.empty() && is_written(groups.front())) {
        for (struct store *store : groups.front()) {
            delete store;
        }
        groups.pop_front();
    }
}

/* ---- products --------------------------------------------------------------------------------------------------------------- */

static float from_bf16(const uint8_t *at)
{
    uint16_t half;
    memcpy(&half, at, sizeof half);
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Element (row or column `line`, k) of an operand of 16 k. MN-major: blocks of 64 lines by 64 k. */
static float operand(const uint8_t *shared, uint32_t base, int is_mn, uint32_t line, uint32_t k)
{
    uint32_t at = is_mn ? line / 64 * 8192 + k * 128 + line % 64 * 2 : line * 128 + 2 * k;
    return from_bf16(shared + swizzled(base + at));
}

/* The warp's 16 rows of a 64 x 256 x 16 product. */
EMULATE_FMA static void multiply_rows(const float (*a)[STEP], const float (*b)[PRODUCT_COLS], float (*__restrict__ sums)[PRODUCT_COLS])
{
    for (uint32_t row = 0; row < WARP_ROWS; row++) {
        for (uint32_t k = 0; k < STEP; k++) {
            for (uint32_t col = 0; col < PRODUCT_COLS; col++) {
                sums[row][col] = fmaf(a[row][k], b[k][col], sums[row][col]);
            }
        }
    }
}

/* Between sums and the accumulators of a lane; their places: hw/wgmma.cuh. */
static void move_sums(float (*sums)[PRODUCT_COLS], uint32_t lane, float *acc, int to_lane)
{
    for (uint32_t i = 0; i < PRODUCT_COLS / 2; i++) {
        float *sum = &sums[lane / 4 + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2 + i % 2];
        *(to_lane ? &acc[i] : sum) = *(to_lane ? sum : &acc[i]);
    }
}

/* Whether a lane has the same product there as the first one. */
static int has_product(const struct thread *lane, size_t idx, const struct product &first)
{
    if (lane->products.empty() || lane->products.front().size() <= idx) {
        return 0;
    }
    const struct product &own = lane->products.front()[idx];
    return own.a == first.a && own.b == first.b && own.a_mn == first.a_mn && own.b_mn == first.b_mn && own.first == first.first;
}

/* A product of the warp that this thread is of: all its lanes have come to it. */
static void multiply(struct thread *const *lanes, size_t idx)
{
    const uint8_t *shared = emulate_me->cta->shared;
    const struct product &product = lanes[0]->products.front()[idx];
    static float a[WARP_ROWS][STEP], b[STEP][PRODUCT_COLS], sums[WARP_ROWS][PRODUCT_COLS];
    uint32_t first_row = emulate_me->idx % 128 / EMULATE_WARP * WARP_ROWS;
    if (!std::all_of(lanes, lanes + EMULATE_WARP, [&](const struct thread *lane) { return has_product(lane, idx, product); })) {
        emulate_fail("the lanes of a warp multiply different things");
    }
    for (uint32_t k = 0; k < STEP; k++) {
        for (uint32_t row = 0; row < WARP_ROWS; row++) {
            a[row][k] = operand(shared, product.a, product.a_mn, first_row + row, k);
        }
        for (uint32_t col = 0; col < PRODUCT_COLS; col++) {
            b[k][col] = operand(shared, product.b, product.b_mn, col, k);
        }
    }
    memset(sums, 0, sizeof sums);
    for (uint32_t lane = 0; lane < EMULATE_WARP && !product.first; lane++) {
        move_sums(sums, lane, lanes[lane]->products.front()[idx].acc, 0);
    }
    multiply_rows(a, b, sums);
    for (uint32_t lane = 0; lane < EMULATE_WARP; lane++) {
        move_sums(sums, lane, lanes[lane]->products.front()[idx].acc, 1);
    }
}

void emulate_multiply(float *acc, uint64_t a, uint64_t b, int a_mn, int b_mn, int first)
{
    emulate_me->open_products.push_back({acc, (uint32_t)a << 4, (uint32_t)b << 4, a_mn, b_mn, first});
}

void emulate_multiply_commit(void)
{
    emulate_me->products.push_back(std::move(emulate_me->open_products));
    emulate_me->open_products.clear();
}

/* The instruction waits for the warp. */
void emulate_multiply_wait(int count)
{
    uint32_t lane = emulate_me->idx % EMULATE_WARP;
    struct thread *const *lanes = &emulate_me->cta->threads[emulate_me->idx - lane];
    emulate_yield();
    emulate_sync_warp();
    while (lane == 0 && (int)lanes[0]->products.size() > count) {
        for (size_t idx = 0; idx < lanes[0]->products.front().size(); idx++) {
            multiply(lanes, idx);
        }
        for (uint32_t other = 0; other < EMULATE_WARP; other++) {
            lanes[other]->products.pop_front();
        }
    }
    emulate_sync_warp();
}
