// The kernels of minhash.py on a GPU, bit for bit.
//
//     shingle    one thread per text: bytes -> words or characters, normalised -> 64-bit hashes -> n-grams x (32 bits)
//     minimise   one block per text:  x -> the minima of the bands -> band keys
//     gather     one block per text:  the n-grams of all texts, concatenated
//
// `shingle` reads a text character by character instead of through a buffer. The results differ only for words longer than the
// buffer of the CPU kernel, which it splits: a batch with such a word is marked and processed on the CPU.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define START 0x243F6A8885A308D3ULL
#define BASE 0x9E3779B97F4A7C15ULL
#define SHORT_TEXT 0xB7E151628AED2A6BULL
#define NUMBER 255
#define MOST_NGRAM 64
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

// The n-grams of one text: takes units, emits x.
struct Window {
    u64 units[MOST_NGRAM];
    u64 rolling, out_of;
    u32* found;
    i64 count;
    int n;

    __device__ void add(u64 unit) {
        int at = (int)(count % n);
        rolling = rolling * BASE + unit;
        if (count >= n) rolling -= out_of * units[at];
        units[at] = unit;
        count++;
        if (count >= n) found[count - n] = (u32)(mix64(rolling) >> 32);
    }
};

// The word being read.
struct Word {
    u64 state, bytes;
    int length, longest;

    __device__ void put(u32 byte) {
        bytes |= (u64)byte << (8 * (length & 7));
        length++;
        if ((length & 7) == 0) {
            state = mix64(state ^ bytes);
            bytes = 0;
        }
    }

    __device__ void end(Window& window) {
        if (length) {
            window.add(mix64(state ^ bytes));
            longest = max(longest, length);
        }
        state = START;
        bytes = 0;
        length = 0;
    }
};

struct Reader {
    Window window;
    Word word;
    bool by_characters;

    __device__ void separate() {
        if (by_characters) window.add(mix64(START));
        else word.end(window);
    }

    __device__ void put(u32 point) {
        u32 bytes = point;
        if (point >= 128) bytes = (128 | (point & 127)) | (128 | ((point >> 7) & 127)) << 8 | ((128 | (point >> 14)) & 255) << 16;
        if (by_characters) {
            window.add(mix64(START ^ bytes));
            return;
        }
        word.put(bytes & 255);
        if (point >= 128) {
            word.put((bytes >> 8) & 255);
            word.put(bytes >> 16);
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

// flags: bits of spaces and control characters, punctuation and symbols, digits, alphanumerics, scripts without spaces
extern "C" __global__ void shingle(
    const u8* data, const i64* offsets, const i64* order, i64 rows, int by_characters, int n, int options,
    const u8* ascii, const int* folds, const u8* points, const u16* kinds, u32 space, u32 punctuation, u32 digit,
    u32 alphanumeric, u32 unspaced, const i64* places, u32* shingles, i64* counts, int* marked)
{
    i64 thread = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (thread >= rows) return;
    i64 row = order[thread], at = offsets[row], end = offsets[row + 1];
    const Tables tables = {ascii, folds, points, kinds};
    Reader reader;
    Window& window = reader.window;
    reader.by_characters = by_characters;
    reader.word.state = START;
    reader.word.bytes = 0;
    reader.word.length = reader.word.longest = 0;
    window.rolling = 0;
    window.count = 0;
    window.n = n;
    window.found = shingles + places[row];
    window.out_of = 1;
    for (int i = 0; i < n; i++) window.out_of *= BASE;
    bool verbatim = by_characters && options == 0, number = false, single = false, last = false;
    while (at < end) {
        u32 byte = data[at];
        if (byte < 128) {
            at++;
            if (verbatim) {
                reader.put(byte);
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
                if (read) reader.separate();
            }
            if (read) reader.put(read);
            else if (last) reader.separate();
            last = read != 0;
            continue;
        }
        u32 point = decode(data, at, end);
        if (!verbatim) {
            u32 flags = flags_of(point, tables);
            if (flags & space || (options & PUNCTUATED && flags & punctuation)) {
                if (last) reader.separate();
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
                if (last && (single || flags & unspaced) && !by_characters) reader.separate();
                single = flags & unspaced && !by_characters;
            }
        }
        reader.put(point);
        last = true;
    }
    if (!by_characters) reader.word.end(window);
    if (reader.word.longest > LONGEST_WORD) *marked = 1;
    i64 total = window.count >= n ? window.count - n + 1 : 0;
    if (total == 0 && window.count > 0) {
        window.found[0] = (u32)(mix64(window.rolling ^ SHORT_TEXT * (u64)window.count) >> 32);
        total = -1;
    }
    counts[row] = total;
}

extern "C" __global__ void minimise(
    const u32* shingles, const i64* places, const i64* counts, const u32* factors, int perms, int bands,
    u64* keys)
{
    extern __shared__ u32 minima[];
    i64 row = blockIdx.x, count = counts[row] < 0 ? 1 : counts[row];
    const u32* found = shingles + places[row];
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
    int per_band = perms / bands;
    for (int band = threadIdx.x; band < bands; band += blockDim.x) {
        u64 key = START + (u64)band;
        for (int i = 0; i < per_band; i++) key = mix64(key ^ minima[band * per_band + i]);
        keys[row * bands + band] = key;
    }
}

extern "C" __global__ void gather(const u32* shingles, const i64* places, const i64* spans, u32* out) {
    i64 row = blockIdx.x, first = spans[row], count = spans[row + 1] - first;
    for (i64 i = threadIdx.x; i < count; i += blockDim.x) out[first + i] = shingles[places[row] + i];
}
