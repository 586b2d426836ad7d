/*
 * See move_ranks.h: which rows each rank needs, and which it sends.
 */
#include "move_ranks.h"

#include <math.h>
#include <string.h>

/* ---- routes ------------------------------------------------------------------------------------------------------------------ */

static uint32_t next_random(void)
{
    static uint64_t state = 1;
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(state >> 33);
}

static double next_unit(void) { return (next_random() + 0.5) / 2147483648.0; }

static int has_id(const int32_t *ids, int num, int32_t id)
{
    for (int i = 0; i < num; i++) {
        if (ids[i] == id) {
            return 1;
        }
    }
    return 0;
}

/* Popularity 1 / (1 + place) over a permutation of the experts, summed up. */
static const double *zipf_sums(void)
{
    static double sums[EXPERTS];
    static int32_t place[EXPERTS];
    double sum = 0.0;
    for (int32_t e = 0; e < EXPERTS && sums[EXPERTS - 1] == 0.0; e++) {
        int32_t other = (int32_t)(next_random() % (uint32_t)(e + 1));
        place[e] = place[other];
        place[other] = e;
    }
    for (int32_t e = 0; e < EXPERTS; e++) {
        sum += 1.0 / (1.0 + place[e]);
        sums[e] = sum;
    }
    return sums;
}

static int32_t draw_expert(enum pattern pattern, int32_t source, int32_t k)
{
    if (pattern == HOT && k == 0) {
        return 0;
    }
    if (pattern == ZIPF) {
        static const double *sums;
        sums = sums == NULL ? zipf_sums() : sums;
        double at = next_unit() * sums[EXPERTS - 1];
        int32_t e = 0;
        while (sums[e] < at && e < EXPERTS - 1) {
            e++;
        }
        return e;
    }
    int32_t e;
    do {
        e = (int32_t)(next_random() % EXPERTS);
    } while (pattern == REMOTE && num_ranks > 1 && mok_plan_owner(EXPERTS, num_ranks, e) == source);
    return e;
}

/* TOP_K different experts a token. ids [ROUTES]. */
static void choose_experts(int32_t source, enum pattern pattern, int32_t *ids)
{
    for (int32_t route = 0; route < ROUTES; route++) {
        int32_t *own = ids + route / TOP_K * TOP_K, k = route % TOP_K;
        do {
            own[k] = draw_expert(pattern, source, k);
        } while (has_id(own, k, own[k]));
    }
}

/* ---- schedules --------------------------------------------------------------------------------------------------------------- */

/* Host images of what a rank's arrays hold. */
static struct {
    struct mok_route routes[MAX_ROWS], row_origin[MAX_ROWS], slot_origin[ROUTES], sent[ROUTES];
    int32_t tables[MAX_ROWS / 128 + 2 * EXPERTS + 1];
    int64_t num_rows, num_sent;
} host[MAX_RANKS];

static void stop_if_full(int64_t row)
{
    if (row + 128 > MAX_ROWS) {
        fprintf(stderr, "a rank owns more rows than the bench has room for\n");
        exit(3);
    }
}

/* The rows of an owner in the order of plan/rows.h. */
static void lay_out(int32_t owner, int32_t *const *ids)
{
    static int32_t lists[MAX_RANKS][ROUTES];
    int32_t first = mok_plan_first_expert(EXPERTS, num_ranks, owner), *tables = host[owner].tables;
    int32_t num_local = mok_plan_num_local(EXPERTS, num_ranks, owner);
    int64_t row = 0;
    for (int32_t e = 0; e < num_local; e++) {
        int32_t counts[MAX_RANKS] = {0}, most = 0, all = 0;
        for (int32_t s = 0; s < num_ranks; s++) {
            for (int32_t route = 0; route < ROUTES; route++) {
                if (ids[s][route] == first + e) {
                    lists[s][counts[s]++] = route;
                }
            }
            most = counts[s] > most ? counts[s] : most;
            all += counts[s];
        }
        stop_if_full(row + all);
        tables[MAX_ROWS / 128 + e] = (int32_t)row;
        tables[MAX_ROWS / 128 + EXPERTS + 1 + e] = all;
        for (int32_t q = 0; q < most; q++) {
            for (int32_t turn = 0; turn < num_ranks; turn++) {
                int32_t s = mok_plan_source_at(num_ranks, owner, turn);
                if (q < counts[s]) {
                    host[s].slot_origin[lists[s][q]] = (struct mok_route){owner, (int32_t)row};
                    host[owner].routes[row++] = (struct mok_route){s, lists[s][q]};
                }
            }
        }
        while (row % 128 != 0) {
            host[owner].routes[row++] = (struct mok_route){-1, -1};
        }
        for (int64_t tile = tables[MAX_ROWS / 128 + e] / 128; tile < row / 128; tile++) {
            tables[tile] = e;
        }
    }
    tables[MAX_ROWS / 128 + num_local] = (int32_t)row;
    host[owner].num_rows = row;
}

/* What each source sends: owners in turns, as long as they have something left, each one's rows in its own order. The order of sent rows is the order
 * of the source's local rows. */
static void find_sent(void)
{
    for (int32_t s = 0; s < num_ranks; s++) {
        int64_t next[MAX_RANKS] = {0}, num = 0, before = -1;
        while (num != before) {
            before = num;
            for (int32_t turn = 0; turn < num_ranks; turn++) {
                int32_t owner = mok_plan_source_at(num_ranks, s, turn);
                while (next[owner] < host[owner].num_rows && host[owner].routes[next[owner]].rank != s) {
                    next[owner]++;
                }
                if (next[owner] < host[owner].num_rows) {
                    host[owner].row_origin[next[owner]] = (struct mok_route){s, (int32_t)num};
                    host[s].sent[num++] = (struct mok_route){owner, (int32_t)next[owner]++};
                }
            }
        }
        host[s].num_sent = num;
    }
}

static void forget(void)
{
    for (int32_t r = 0; r < num_ranks; r++) {
        memset(host[r].tables, 0, sizeof host[r].tables);
        memset(host[r].row_origin, 0xff, sizeof host[r].row_origin);   /* rank -1: nothing comes here */
        memset(host[r].slot_origin, 0xff, sizeof host[r].slot_origin);
        host[r].num_rows = host[r].num_sent = 0;
    }
}

static void upload_moves(struct moves *moves, const struct mok_route *routes, int64_t num_rows)
{
    const struct mok_schedule_head head = {(int32_t)num_rows, (int32_t)(num_rows / 128), 0, TOKENS, 0};
    moves->num_rows = num_rows;
    CHECK(cudaMemcpy(moves->routes, routes, (size_t)num_rows * sizeof *routes, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(moves->head, &head, sizeof head, cudaMemcpyHostToDevice));
}

static void upload(void)
{
    for (int32_t r = 0; r < num_ranks; r++) {
        struct rank *rank = &ranks[r];
        CHECK(cudaSetDevice(rank->device));
        upload_moves(&rank->owned, host[r].routes, host[r].num_rows);
        upload_moves(&rank->sent, host[r].sent, host[r].num_sent);
        rank->num_received = host[r].num_rows;
        CHECK(cudaMemcpy(rank->tables, host[r].tables, sizeof host[r].tables, cudaMemcpyHostToDevice));
        CHECK(cudaMemcpy(rank->slot_origin, host[r].slot_origin, sizeof host[r].slot_origin, cudaMemcpyHostToDevice));
        CHECK(cudaMemcpy(rank->row_origin, host[r].row_origin, sizeof host[r].row_origin, cudaMemcpyHostToDevice));
    }
}

/* Rows that cross a link in one direction. Ranks that share a GPU count as if they did not. */
static int64_t most_rows(void)
{
    int64_t in[MAX_RANKS] = {0}, out[MAX_RANKS] = {0}, most = 0;
    for (int32_t r = 0; r < num_ranks; r++) {
        for (int64_t row = 0; row < host[r].num_rows; row++) {
            int32_t s = host[r].routes[row].rank;
            in[r] += s >= 0 && s != r;
            out[s < 0 ? r : s] += s >= 0 && s != r;
        }
    }
    for (int32_t r = 0; r < num_ranks; r++) {
        most = in[r] > most ? in[r] : most;
        most = out[r] > most ? out[r] : most;
    }
    return most;
}

void make_traffic(enum pattern pattern, int64_t *most_out)
{
    static int32_t ids[MAX_RANKS][ROUTES];
    int32_t *lists[MAX_RANKS];
    forget();
    for (int32_t s = 0; s < num_ranks; s++) {
        lists[s] = ids[s];
        choose_experts(s, pattern, ids[s]);
    }
    for (int32_t r = 0; r < num_ranks; r++) {
        lay_out(r, lists);
    }
    find_sent();
    upload();
    *most_out = most_rows();
}

void make_minibatch(int32_t rows, int32_t num_sources)
{
    forget();
    for (int32_t row = 0; row < rows; row++) {
        host[0].routes[row] = (struct mok_route){1 + row % num_sources, row / num_sources * TOP_K};
    }
    host[0].num_rows = rows;
    host[0].tables[MAX_ROWS / 128 + 1] = rows;
    host[0].tables[MAX_ROWS / 128 + EXPERTS + 1] = rows;
    find_sent();
    upload();
}
