// The kernels of minhash.py and of digests.py on a GPU, bit for bit.
//
//     read_units   one thread per 256 bytes: bytes -> words or characters, normalised -> 64-bit hashes
//     compact      one block per 256 bytes:  the hashes of all texts, one after another
//     make_ngrams  one block per text:       hashes -> n-grams x (32 bits)
//     minimise     one block per text:       x -> the minima of the bands -> band keys
//     digest       one block per text:       bytes -> MurmurHash3_x64_128
//
// After white space in ASCII, nothing of what was read before matters: neither word nor number continues. So a text is cut there,
// and many threads read it at the same time. `read_units` reads character by character instead of through a buffer. The results
// differ only for words longer than the buffer of the CPU kernel, which it splits: a batch with such a word is marked and
// processed on the CPU.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define START 0x243F6A8885A308D3ULL
#define BASE 0x9E3779B97F4A7C15ULL
#define SHORT_TEXT 0xB7E151628AED2A6BULL
#define NUMBER 255
#define CHUNK 256
#define LONGEST_WORD 4000

enum { LOWERCASE = 1, DIGITS = 2, PUNCTUATED = 4, ACCENTS = 8 };

__device__ __forceinline__ u64 mix64(u64 value) {
    value ^= value >> 33;
    value *= 0xFF51AFD7ED558CCDULL;
    value ^= value >> 33;
    value *= 0xC4CEB9FE1A85EC53ULL;
    return value ^ (value >> 33);
}

struct Tables {
    const u8* ascii;
    const int* folds;
    const u8* points;
    const u16* kinds;
};

__device__ __forceinline__ u32 flags_of(u32 point, const Tables& tables) {
    u32 block = tables.points[256 + (point >> 8)];
    return tables.kinds[128 + tables.points[4608 + ((block << 8) | (point & 255))]];
}

// Receives the words or characters of a piece of text, and writes their hashes.
struct Units {
    u64* out;
    u64 state, bytes;
    i64 count;
    int length, longest;
    bool by_characters;

    __device__ void separate() {
        if (by_characters) {
            out[count++] = mix64(START);
            return;
        }
        if (length) {
            out[count++] = mix64(state ^ bytes);
            longest = max(longest, length);
        }
        state = START;
        bytes = 0;
        length = 0;
    }

    __device__ void put_byte(u32 byte) {
        bytes |= (u64)byte << (8 * (length & 7));
        length++;
        if ((length & 7) == 0) {
            state = mix64(state ^ bytes);
            bytes = 0;
        }
    }

    __device__ void put(u32 point) {
        u32 first = point;
        if (point >= 128) first = (128 | (point & 127)) | (128 | ((point >> 7) & 127)) << 8 | ((128 | (point >> 14)) & 255) << 16;
        if (by_characters) {
            out[count++] = mix64(START ^ first);
            return;
        }
        put_byte(first & 255);
        if (point >= 128) {
            put_byte((first >> 8) & 255);
            put_byte(first >> 16);
        }
    }
};

__device__ __forceinline__ u32 decode(const u8* data, i64& at, i64 end) {
    u32 byte = data[at];
    if (byte >= 0xE0 && byte < 0xF0 && at + 2 < end) {
        u32 point = (byte & 15) << 12 | (data[at + 1] & 63) << 6 | (data[at + 2] & 63);
        at += 3;
        return point;
    }
    if (byte >= 0xC0 && byte < 0xE0 && at + 1 < end) {
        u32 point = (byte & 31) << 6 | (data[at + 1] & 63);
        at += 2;
        return point;
    }
    if (byte >= 0xF0 && byte < 0xF5 && at + 3 < end) {
        u32 point = (byte & 7) << 18 | (data[at + 1] & 63) << 12 | (data[at + 2] & 63) << 6 | (data[at + 3] & 63);
        at += 4;
        return min(point, 0x10FFFFu);
    }
    at += 1;
    return 0xFFFD;
}

// Whether a text can be cut after data[at]: it is white space, and no character before it could have included it.
__device__ __forceinline__ bool is_cut(const u8* data, i64 at, i64 start) {
    u32 byte = data[at];
    if (byte != 32 && (byte < 9 || byte > 13)) return false;
    if (at - 1 >= start && data[at - 1] >= 0xC0) return false;
    if (at - 2 >= start && data[at - 2] >= 0xE0) return false;
    return !(at - 3 >= start && data[at - 3] >= 0xF0);
}

// The row of a chunk: the last one whose first chunk is not after it.
__device__ __forceinline__ i64 row_of(const i64* first_chunks, i64 rows, i64 chunk) {
    i64 low = 0, high = rows - 1;
    while (low < high) {
        i64 middle = (low + high + 1) / 2;
        if (first_chunks[middle] <= chunk) low = middle;
        else high = middle - 1;
    }
    return low;
}

// A chunk is 256 bytes of a text. Its thread reads from the first cut in the chunk, or the beginning of the text, to the first cut
// after the chunk, or the end of the text.
//
// flags: bits of spaces and control characters, punctuation and symbols, digits, alphanumerics, scripts without spaces
// places, counts: where the hashes of a chunk are in `units`, and how many
extern "C" __global__ void read_units(
    const u8* data, const i64* offsets, const i64* first_chunks, i64 rows, i64 chunks, int by_characters, int options,
    const u8* ascii, const int* folds, const u8* points, const u16* kinds, u32 space, u32 punctuation, u32 digit,
    u32 alphanumeric, u32 unspaced, u64* units, i64* places, i64* counts, i64* marked)
{
    i64 chunk = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (chunk >= chunks) return;
    i64 row = row_of(first_chunks, rows, chunk), start = offsets[row], end = offsets[row + 1];
    i64 number_in_row = chunk - first_chunks[row], at = start + CHUNK * number_in_row, next_chunk = min(end, at + CHUNK);
    counts[chunk] = 0;
    places[chunk] = 0;
    if (number_in_row) {
        while (at < next_chunk && !is_cut(data, at - 1, start)) at++;
        if (at >= next_chunk) return;
    }
    const Tables tables = {ascii, folds, points, kinds};
    i64 place = (by_characters ? at : at / 2) + row;  // a word takes at least a byte and a separator, or three bytes
    Units found = {units + place, START, 0, 0, 0, 0, by_characters != 0};
    bool verbatim = by_characters && options == 0, number = false, single = false, last = false;
    while (at < end) {
        if (at >= next_chunk && is_cut(data, at - 1, start)) break;
        u32 byte = data[at];
        if (byte < 128) {
            at++;
            if (verbatim) {
                found.put(byte);
                continue;
            }
            u32 read = tables.ascii[byte];
            if (read == NUMBER) {
                read = 48;
                if (number) continue;
                number = true;
            } else if (number) {
                bool joins = read == 0 && (byte == 46 || byte == 44) && at < end && data[at] < 128;
                if (joins && tables.ascii[data[at]] == NUMBER) continue;
                number = false;
            }
            if (single) {
                single = false;
                if (read) found.separate();
            }
            if (read) found.put(read);
            else if (last) found.separate();
            last = read != 0;
            continue;
        }
        u32 point = decode(data, at, end);
        if (!verbatim) {
            u32 flags = flags_of(point, tables);
            if (flags & space || (options & PUNCTUATED && flags & punctuation)) {
                if (last) found.separate();
                last = number = single = false;
                continue;
            }
            if (options & ACCENTS && point >= 0x300 && point < 0x370) continue;
            if (flags & digit && options & DIGITS) {
                if (number) continue;
                number = true;
                point = 48;
            } else {
                number = false;
                if (point < 65536) point = tables.folds[point];
            }
            if (flags & alphanumeric) {
                if (last && (single || flags & unspaced) && !by_characters) found.separate();
                single = flags & unspaced && !by_characters;
            }
        }
        found.put(point);
        last = true;
    }
    if (!by_characters) found.separate();
    if (found.longest > LONGEST_WORD) *marked = 1;
    places[chunk] = place;
    counts[chunk] = found.count;
}

extern "C" __global__ void compact(const u64* units, const i64* places, const i64* ends, i64 chunks, u64* out) {
    for (i64 chunk = (i64)blockIdx.x * blockDim.y + threadIdx.y; chunk < chunks; chunk += (i64)gridDim.x * blockDim.y) {
        i64 first = chunk ? ends[chunk - 1] : 0, count = ends[chunk] - first;
        const u64* found = units + places[chunk];
        for (i64 i = threadIdx.x; i < count; i += blockDim.x) out[first + i] = found[i];
    }
}

// The polynomial that minhash.py computes by a rolling hash: modulo 2**64 both are exact.
extern "C" __global__ void make_ngrams(const u64* units, const i64* begins, const i64* spans, i64 rows, int n, u32* shingles) {
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
        i64 first = begins[row], have = begins[row + 1] - first, out = spans[row], count = spans[row + 1] - out;
        int size = have < n ? (int)have : n;
        for (i64 i = threadIdx.x; i < count; i += blockDim.x) {
            u64 rolling = 0;
            for (int k = 0; k < size; k++) rolling = rolling * BASE + units[first + i + k];
            if (have < n) rolling ^= SHORT_TEXT * (u64)have;
            shingles[out + i] = (u32)(mix64(rolling) >> 32);
        }
    }
}

extern "C" __global__ void minimise(
    const u32* shingles, const i64* spans, i64 rows, const u32* factors, int perms, int bands, u64* keys)
{
    extern __shared__ u32 minima[];
    int per_band = perms / bands;
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
        i64 count = spans[row + 1] - spans[row];
        const u32* found = shingles + spans[row];
        for (int p = threadIdx.x; p < perms; p += blockDim.x) {
            u32 factor = factors[p], least = 0xFFFFFFFFu;
            i64 i = 0;
            for (; i + 4 <= count; i += 4) {
                u32 a = factor * found[i], b = factor * found[i + 1], c = factor * found[i + 2], d = factor * found[i + 3];
                least = min(least, min(min(a, b), min(c, d)));
            }
            for (; i < count; i++) least = min(least, factor * found[i]);
            minima[p] = least;
        }
        __syncthreads();
        for (int band = threadIdx.x; band < bands; band += blockDim.x) {
            u64 key = START + (u64)band;
            for (int i = 0; i < per_band; i++) key = mix64(key ^ minima[band * per_band + i]);
            keys[row * bands + band] = key;
        }
        __syncthreads();
    }
}

#define C1 0x87C37B91114253D5ULL
#define C2 0x4CF5AD432745937FULL
#define BLOCKS 32

__device__ __forceinline__ u64 rotate(u64 value, int left) { return value << left | value >> (64 - left); }

__device__ __forceinline__ u64 load64(const u8* data, i64 at) {
    u64 word = 0;
    for (int i = 0; i < 8; i++) word |= (u64)data[at + i] << (8 * i);
    return word;
}

// The first half of MurmurHash3_x64_128 of each text. The threads of a block load and mix 32 blocks of 16 bytes at a time; what
// follows depends on the block before, and all threads compute it.
extern "C" __global__ void digest(const u8* data, const i64* offsets, i64 rows, u64 seed, u64* out) {
    __shared__ u64 first[BLOCKS], second[BLOCKS];
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
        i64 start = offsets[row], stop = offsets[row + 1], blocks = (stop - start) / 16;
        u64 h1 = seed, h2 = seed;
        for (i64 done = 0; done < blocks; done += BLOCKS) {
            int here = (int)min((i64)BLOCKS, blocks - done);
            for (int i = threadIdx.x; i < here; i += blockDim.x) {
                i64 at = start + 16 * (done + i);
                first[i] = rotate(load64(data, at) * C1, 31) * C2;
                second[i] = rotate(load64(data, at + 8) * C2, 33) * C1;
            }
            __syncthreads();
            for (int i = 0; i < here; i++) {
                h1 ^= first[i];
                h1 = (rotate(h1, 27) + h2) * 5 + 0x52DCE729ULL;
                h2 ^= second[i];
                h2 = (rotate(h2, 31) + h1) * 5 + 0x38495AB5ULL;
            }
            __syncthreads();
        }
        if (threadIdx.x) continue;
        i64 at = start + 16 * blocks, left = stop - at;
        u64 k1 = 0, k2 = 0, size = (u64)(stop - start);
        for (i64 i = 0; i < left && i < 8; i++) k1 |= (u64)data[at + i] << (8 * i);
        for (i64 i = 8; i < left; i++) k2 |= (u64)data[at + i] << (8 * (i - 8));
        h2 ^= rotate(k2 * C2, 33) * C1;
        h1 ^= rotate(k1 * C1, 31) * C2;
        h1 ^= size;
        h2 ^= size;
        h1 += h2;
        h2 += h1;
        out[row] = mix64(h1) + mix64(h2);
    }
}
