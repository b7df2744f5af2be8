// Connected components of rows that share a key, by union-find in which many threads join sets at the same time.
//
//     join_rows one thread per pair of neighbours in the order of keys: joins the sets of two rows with the same key
//     flatten   one thread per row: the smallest row of its set, or -1 if it shares no key
//
// A parent is never larger than its child, and of two roots the larger one is joined to the smaller one. So the root of a set is
// its smallest row, in whatever order the threads run. (Jaiganesh and Burtscher 2018, ECL-CC.)

typedef unsigned char u8;
typedef unsigned long long u64;
typedef long long i64;

__device__ __forceinline__ u64 find_root(u64* parents, u64 row) {
    u64 parent = ((volatile u64*)parents)[row];
    while (parent != row) {
        u64 above = ((volatile u64*)parents)[parent];
        if (above != parent) ((volatile u64*)parents)[row] = above;  // halves the path; another thread can only lower it further
        row = parent;
        parent = above;
    }
    return row;
}

// order: positions in `keys` that sort them; bands: keys per entry of `rows`; chosen: positions in all keys
extern "C" __global__ void join_rows(
    const u64* keys, const i64* order, const i64* chosen, i64 count, int bands, const i64* rows, u64* parents, u8* touched,
    u64* pairs)
{
    i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x + 1;
    if (at >= count) return;
    i64 here = order[at], before = order[at - 1];
    if (keys[here] != keys[before]) return;
    atomicAdd(pairs, 1ULL);
    u64 left = (u64)rows[chosen[before] / bands], right = (u64)rows[chosen[here] / bands];
    touched[left] = touched[right] = 1;
    while (true) {
        left = find_root(parents, left);
        right = find_root(parents, right);
        if (left == right) return;
        u64 low = min(left, right), high = max(left, right);
        if (atomicCAS(parents + high, high, low) == high) return;
    }
}

extern "C" __global__ void flatten(u64* parents, const u8* touched, i64 total, i64* out) {
    i64 row = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= total) return;
    u64 root = (u64)row;
    while (parents[root] != root) root = parents[root];
    out[row] = touched[row] ? (i64)root : -1;
}
