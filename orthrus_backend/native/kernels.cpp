// The hot loops of a step on CPU: paged attention, normalisation, rotary position embedding, gating, argmax.
//
// Plain C functions over raw memory, so that Python needs no build system to reach them; every size and type is checked
// by the caller (`ops.py`). Vectors are GCC's own extension: their width follows the machine that compiles. Each output
// row is computed from its own inputs, in an order that depends on positions only: never on its neighbours in the batch.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

typedef float vf __attribute__((vector_size(W * 4)));
typedef int32_t vi __attribute__((vector_size(W * 4)));
typedef uint32_t vu __attribute__((vector_size(W * 4)));
typedef uint16_t vh __attribute__((vector_size(W * 2)));

struct bf16 {
  uint16_t bits;
};

inline vf splat(float x) { return x - vf{}; }

inline vf load(const float* p) {
  vf x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
inline vf load(const bf16* p) {
  vh h;
  std::memcpy(&h, p, sizeof h);
  return (vf)(__builtin_convertvector(h, vu) << 16);
}
inline void store(float* p, vf x) { std::memcpy(p, &x, sizeof x); }
inline void store(bf16* p, vf x) {
  const vu bits = (vu)x;
  const vu rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // to nearest, ties to even
  const vu quiet = (bits >> 16) | 0x40;
  const vh h = __builtin_convertvector(((vu)(x == x) & rounded) | (~(vu)(x == x) & quiet), vh);
  std::memcpy(p, &h, sizeof h);
}
inline float one(const float* p) { return *p; }
inline float one(const bf16* p) {
  const uint32_t bits = uint32_t(p->bits) << 16;
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
inline void put(float* p, float x) { *p = x; }
inline void put(bf16* p, float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  p->bits = x == x ? uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) : uint16_t((bits >> 16) | 0x40);
}

inline float sum(vf x) {
  float total = 0;
  for (int i = 0; i < W; ++i) total += x[i];
  return total;
}

// exp by range reduction to [-ln2/2, ln2/2] and a Taylor polynomial: relative error below 2e-7; 0 below -87.
inline vf exponential(vf x) {
  const vi small = x < splat(-87.0f);
  x = (vf)(((vi)x & ~small) | ((vi)splat(-87.0f) & small));
  const vi large = x > splat(88.0f);
  x = (vf)(((vi)x & ~large) | ((vi)splat(88.0f) & large));
  const vf shifted = x * 1.44269504088896341f + 12582912.0f;  // 1.5 * 2^23: rounds to the nearest integer
  const vf n = shifted - 12582912.0f;
  const vf r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts
  vf p = splat(1.0f / 5040);
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const vi exponent = (__builtin_convertvector(n, vi) + 127) << 23;
  return (vf)((vi)(p * (vf)exponent) & ~small);
}

// Applies f to `n` floats in place, a vector at a time; the tail goes through a padded copy.
template <class F>
inline void each(float* x, int n, F f) {
  int i = 0;
  for (; i + W <= n; i += W) store(x + i, f(load(x + i)));
  if (i < n) {
    float tail[W] = {};
    std::memcpy(tail, x + i, (n - i) * sizeof(float));
    const vf y = f(load(tail));
    std::memcpy(x + i, &y, (n - i) * sizeof(float));
  }
}

constexpr int KEYS = 64;   // keys looked at together, on borders that depend on positions only
constexpr int ROWS = 4;    // rows of a register tile
constexpr int TILE = 64;   // (token, head) pairs that share a pass over the keys
constexpr int FEW = 8;     // pairs of a slice below which transposing the keys does not pay

// One slice of the batch: where its rows are, what comes before them, and where its keys are.
struct Item {
  int64_t first;   // row of its first token
  int64_t rows;    // tokens
  int64_t offset;  // position of its first token
  int64_t table;   // where its blocks begin in `blocks`; -1: its keys are the batch's own rows
};

template <class T>
struct Attention {
  T* out;
  const T *query, *key, *value;                       // [T, *, dim] with these row strides
  int64_t query_stride, key_stride, value_stride;
  const T *key_cache, *value_cache;                   // [slots, kv_heads, dim]
  const int32_t* blocks;
  int block_size, heads, kv_heads, dim, window;
  float scale, softcap;

  int group() const { return heads / kv_heads; }

  const T* row(const T* cache, const T* batch, int64_t stride, const Item& item, int head, int64_t position) const {
    if (item.table < 0) return batch + (item.first + position) * stride + int64_t(head) * dim;
    const int64_t slot = int64_t(blocks[item.table + position / block_size]) * block_size + position % block_size;
    return cache + (slot * kv_heads + head) * dim;
  }
  const T* key_row(const Item& item, int head, int64_t position) const {
    return row(key_cache, key, key_stride, item, head, position);
  }
  const T* value_row(const Item& item, int head, int64_t position) const {
    return row(value_cache, value, value_stride, item, head, position);
  }
  int64_t oldest(int64_t position) const { return window > 0 ? std::max<int64_t>(0, position - window + 1) : 0; }

  void cap(float* scores, int n) const {
    if (softcap <= 0) return;
    each(scores, n, [this](vf s) {
      const vf t = exponential(s * (2 / softcap));
      return softcap * (1 - 2 / (t + 1));  // c * tanh(s / c)
    });
  }

  // Turns scores [n] into weights relative to the running maximum; returns what earlier sums are multiplied by.
  static float weigh(float* scores, int n, float& highest, float& total) {
    float top = scores[0];
    for (int i = 1; i < n; ++i) top = scores[i] > top ? scores[i] : top;
    const float before = highest;
    highest = std::max(before, top);
    const vf shift = splat(highest);
    each(scores, n, [shift](vf s) { return exponential(s - shift); });
    vf sums{};
    int i = 0;
    for (; i + W <= n; i += W) sums += load(scores + i);
    float added = sum(sums);
    for (; i < n; ++i) added += scores[i];
    const float factor = before == -INFINITY ? 0.0f : std::exp(before - highest);
    total = total * factor + added;
    return factor;
  }

  // A few rows of one head group: every key is read once, as a dot product with each row.
  template <int D>
  void few(const Item& item, int head, int64_t first, int64_t last) const {
    const int g = group();
    float queries[FEW][D], sums[FEW][D], scores[FEW][KEYS], highest[FEW], total[FEW];
    const int rows = int(last - first) * g;
    for (int r = 0; r < rows; ++r) {
      const T* q = query + (item.first + first + r / g) * query_stride + int64_t(head * g + r % g) * D;
      for (int d = 0; d < D; d += W) {
        store(queries[r] + d, load(q + d) * scale);
        store(sums[r] + d, vf{});
      }
      highest[r] = -INFINITY;
      total[r] = 0;
    }
    const int64_t end = item.offset + last;
    for (int64_t start = oldest(item.offset + first) / KEYS * KEYS; start < end; start += KEYS) {
      const int n = int(std::min<int64_t>(KEYS, end - start));
      for (int j = 0; j < n; ++j) {
        const T* k = key_row(item, head, start + j);
        for (int r = 0; r < rows; ++r) {
          vf a{}, b{};
          for (int d = 0; d < D; d += 2 * W) {
            a += load(k + d) * load(queries[r] + d);
            if (d + W < D) b += load(k + d + W) * load(queries[r] + d + W);
          }
          scores[r][j] = sum(a + b);
        }
      }
      int low[FEW], high[FEW];
      for (int r = 0; r < rows; ++r) {
        const int64_t position = item.offset + first + r / g;
        low[r] = int(std::clamp<int64_t>(oldest(position) - start, 0, n));
        high[r] = int(std::clamp<int64_t>(position + 1 - start, 0, n));
        if (low[r] >= high[r]) continue;
        cap(scores[r] + low[r], high[r] - low[r]);
        const float factor = weigh(scores[r] + low[r], high[r] - low[r], highest[r], total[r]);
        for (int d = 0; d < D; d += W) store(sums[r] + d, load(sums[r] + d) * factor);
      }
      for (int j = 0; j < n; ++j) {
        const T* v = value_row(item, head, start + j);
        for (int r = 0; r < rows; ++r) {
          if (j < low[r] || j >= high[r]) continue;
          const float weight = scores[r][j];
          for (int d = 0; d < D; d += W) store(sums[r] + d, load(sums[r] + d) + load(v + d) * weight);
        }
      }
    }
    finish<D>(item, head, first, rows, sums, total);
  }

  // Many rows of one head group: keys are transposed once, then products run in register tiles.
  template <int D>
  void many(const Item& item, int head, int64_t first, int64_t last) const {
    const int g = group();
    alignas(64) float queries[TILE][D], sums[TILE][D], scores[TILE][KEYS], keys[D][KEYS], values[KEYS][D];
    float highest[TILE], total[TILE];
    const int rows = int(last - first) * g;
    const int padded = (rows + ROWS - 1) / ROWS * ROWS;
    std::memset(queries, 0, sizeof(float) * D * padded);
    std::memset(sums, 0, sizeof(float) * D * padded);
    for (int r = 0; r < rows; ++r) {
      const T* q = query + (item.first + first + r / g) * query_stride + int64_t(head * g + r % g) * D;
      for (int d = 0; d < D; d += W) store(queries[r] + d, load(q + d) * scale);
      highest[r] = -INFINITY;
      total[r] = 0;
    }
    const int64_t end = item.offset + last;
    for (int64_t start = oldest(item.offset + first) / KEYS * KEYS; start < end; start += KEYS) {
      const int n = int(std::min<int64_t>(KEYS, end - start));
      for (int j = 0; j < n; ++j) {
        const T* k = key_row(item, head, start + j);
        const T* v = value_row(item, head, start + j);
        for (int d = 0; d < D; ++d) keys[d][j] = one(k + d);
        for (int d = 0; d < D; d += W) store(values[j] + d, load(v + d));
      }
      for (int j = n; j < KEYS; ++j) {
        for (int d = 0; d < D; ++d) keys[d][j] = 0;
        std::memset(values[j], 0, sizeof values[j]);
      }
      for (int r = 0; r < padded; r += ROWS) products<D, KEYS>(&queries[r][0], D, &keys[0][0], &scores[r][0], false);
      for (int r = 0; r < padded; ++r) {
        const int64_t position = item.offset + first + r / g;
        const int low = int(std::clamp<int64_t>(oldest(position) - start, 0, n));
        const int high = r < rows ? int(std::clamp<int64_t>(position + 1 - start, 0, n)) : 0;
        std::fill(scores[r], scores[r] + std::min(low, KEYS), 0.0f);
        std::fill(scores[r] + std::max(high, 0), scores[r] + KEYS, 0.0f);
        if (low >= high) {
          std::fill(scores[r], scores[r] + KEYS, 0.0f);
          continue;
        }
        cap(scores[r] + low, high - low);
        const float factor = weigh(scores[r] + low, high - low, highest[r], total[r]);
        for (int d = 0; d < D; d += W) store(sums[r] + d, load(sums[r] + d) * factor);
      }
      for (int r = 0; r < padded; r += ROWS) products<KEYS, D>(&scores[r][0], KEYS, &values[0][0], &sums[r][0], true);
    }
    finish<D>(item, head, first, rows, sums, total);
  }

  // c[ROWS][N] (+)= a[ROWS][K] b[K][N], all in registers for 2 W columns at a time.
  template <int K, int N>
  static void products(const float* a, int stride, const float* b, float* c, bool add) {
    constexpr int STEP = N % (2 * W) == 0 ? 2 : 1;
    for (int column = 0; column < N; column += STEP * W) {
      vf acc[ROWS][STEP];
      for (int r = 0; r < ROWS; ++r)
        for (int s = 0; s < STEP; ++s) acc[r][s] = add ? load(c + r * N + column + s * W) : vf{};
      for (int k = 0; k < K; ++k) {
        vf right[STEP];
        for (int s = 0; s < STEP; ++s) right[s] = load(b + k * N + column + s * W);
        for (int r = 0; r < ROWS; ++r)
          for (int s = 0; s < STEP; ++s) acc[r][s] += a[r * stride + k] * right[s];
      }
      for (int r = 0; r < ROWS; ++r)
        for (int s = 0; s < STEP; ++s) store(c + r * N + column + s * W, acc[r][s]);
    }
  }

  template <int D>
  void finish(const Item& item, int head, int64_t first, int rows, const float (*sums)[D], const float* total) const {
    const int g = group();
    for (int r = 0; r < rows; ++r) {
      T* o = out + ((item.first + first + r / g) * heads + head * g + r % g) * D;
      for (int d = 0; d < D; d += W) store(o + d, load(sums[r] + d) / total[r]);
    }
  }

  template <int D>
  void run(const Item* items, int64_t count, int threads) const {
    struct Work {
      const Item* item;
      int64_t first, last;
    };
    const int64_t tokens = std::max(1, TILE / group());
    std::vector<Work> works;
    for (const Item* item = items; item < items + count; ++item)
      for (int64_t first = item->rows; first > 0; first -= std::min(first, tokens))  // the longest first
        works.push_back({item, std::max<int64_t>(0, first - tokens), first});
    const int64_t units = int64_t(works.size()) * kv_heads;
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (units > 1)
    for (int64_t unit = 0; unit < units; ++unit) {
      const Work& work = works[unit / kv_heads];
      const int head = int(unit % kv_heads);
      if (work.item->rows * group() < FEW)
        few<D>(*work.item, head, work.first, work.last);
      else
        many<D>(*work.item, head, work.first, work.last);
    }
  }
};

template <class T>
int attend(T* out, const T* query, int64_t query_stride, const T* key, int64_t key_stride, const T* value,
           int64_t value_stride, const T* key_cache, const T* value_cache, const int64_t* items, int64_t count,
           const int32_t* blocks, int block_size, int heads, int kv_heads, int dim, int window, float scale,
           float softcap, int threads) {
  const Attention<T> attention{out,    query,  key,      value,      query_stride, key_stride, value_stride,
                               key_cache, value_cache, blocks, block_size, heads, kv_heads, dim, window, scale, softcap};
  if (heads / kv_heads > TILE) return 1;
  const Item* first = reinterpret_cast<const Item*>(items);
  switch (dim) {
    case 16: attention.template run<16>(first, count, threads); return 0;
    case 32: attention.template run<32>(first, count, threads); return 0;
    case 64: attention.template run<64>(first, count, threads); return 0;
    case 80: attention.template run<80>(first, count, threads); return 0;
    case 96: attention.template run<96>(first, count, threads); return 0;
    case 128: attention.template run<128>(first, count, threads); return 0;
    case 256: attention.template run<256>(first, count, threads); return 0;
  }
  return 1;
}

constexpr int64_t GRAIN = 1 << 15;  // numbers below which a second thread costs more than it brings

// x * weight / rms(x), over `dim` numbers at `x`, to `out`.
template <class T>
inline void normalise(T* out, const T* x, const T* weight, int64_t dim, float epsilon) {
  vf squares{};
  int64_t d = 0;
  for (; d + W <= dim; d += W) squares += load(x + d) * load(x + d);
  float total = sum(squares);
  for (; d < dim; ++d) total += one(x + d) * one(x + d);
  const float scale = 1 / std::sqrt(total / dim + epsilon);
  for (d = 0; d + W <= dim; d += W) store(out + d, load(x + d) * scale * load(weight + d));
  for (; d < dim; ++d) put(out + d, one(x + d) * scale * one(weight + d));
}

template <class T>
void add_and_normalise(T* out, T* residual, const T* x, const T* weight, int64_t rows, int64_t dim, float epsilon,
                       int threads) {
#pragma omp parallel for num_threads(threads) if (rows * dim > GRAIN)
  for (int64_t row = 0; row < rows; ++row) {
    T* sums = residual + row * dim;
    if (x) {
      const T* added = x + row * dim;
      int64_t d = 0;
      for (; d + W <= dim; d += W) store(sums + d, load(sums + d) + load(added + d));
      for (; d < dim; ++d) put(sums + d, one(sums + d) + one(added + d));
    }
    normalise(out + row * dim, sums, weight, dim, epsilon);
  }
}

template <class T>
void gate(T* out, const T* gate_up, int64_t rows, int64_t dim, int threads) {
#pragma omp parallel for num_threads(threads) if (rows * dim > GRAIN)
  for (int64_t row = 0; row < rows; ++row) {
    const T *g = gate_up + row * 2 * dim, *u = g + dim;
    T* o = out + row * dim;
    int64_t d = 0;
    for (; d + W <= dim; d += W) {
      const vf x = load(g + d);
      store(o + d, x / (1 + exponential(-x)) * load(u + d));
    }
    for (; d < dim; ++d) put(o + d, one(g + d) / (1 + std::exp(-one(g + d))) * one(u + d));
  }
}

// Turns pairs (d, d + half) of one head by the row's angles. `cosine`, `sine`: [half].
template <class T>
inline void turn(T* x, const float* cosine, const float* sine, int half) {
  int d = 0;
  for (; d + W <= half; d += W) {
    const vf a = load(x + d), b = load(x + half + d), c = load(cosine + d), s = load(sine + d);
    store(x + d, a * c - b * s);
    store(x + half + d, b * c + a * s);
  }
  for (; d < half; ++d) {
    const float a = one(x + d), b = one(x + half + d);
    put(x + d, a * cosine[d] - b * sine[d]);
    put(x + half + d, b * cosine[d] + a * sine[d]);
  }
}

template <class T>
void rotate(T* qkv, int64_t rows, int heads, int kv_heads, int dim, const float* cosine, const float* sine,
            const T* query_weight, const T* key_weight, float epsilon, int threads) {
  const int64_t width = int64_t(heads + 2 * kv_heads) * dim;
#pragma omp parallel for num_threads(threads) if (rows * width > GRAIN)
  for (int64_t row = 0; row < rows; ++row) {
    T* x = qkv + row * width;
    for (int head = 0; head < heads + kv_heads; ++head, x += dim) {
      const T* weight = head < heads ? query_weight : key_weight;
      if (weight) normalise(x, x, weight, dim, epsilon);
      turn(x, cosine + row * (dim / 2), sine + row * (dim / 2), dim / 2);
    }
  }
}

// Copies rows of keys and values, `width` numbers each, to their slots; a slot below 0 is none.
template <class T>
void keep(const T* key, int64_t key_stride, const T* value, int64_t value_stride, T* key_cache, T* value_cache,
          const int64_t* slots, int64_t rows, int64_t width) {
  for (int64_t row = 0; row < rows; ++row) {
    if (slots[row] < 0) continue;
    std::memcpy(key_cache + slots[row] * width, key + row * key_stride, width * sizeof(T));
    std::memcpy(value_cache + slots[row] * width, value + row * value_stride, width * sizeof(T));
  }
}

// The largest of each row, of equals the first; NaN counts as -inf, and where nothing is above that, the first.
template <class T>
void largest(int64_t* out, const T* x, int64_t rows, int64_t columns, int64_t stride, int threads) {
#pragma omp parallel for num_threads(threads) if (rows > 1)
  for (int64_t row = 0; row < rows; ++row) {
    const T* scores = x + row * stride;
    vf top = splat(-INFINITY);
    int64_t i = 0;
    for (; i + W <= columns; i += W) {
      const vf s = load(scores + i);
      const vi above = s > top;
      top = (vf)(((vi)s & above) | ((vi)top & ~above));
    }
    float best = -INFINITY;
    for (int lane = 0; lane < W; ++lane) best = std::max(best, top[lane]);
    for (int64_t j = i; j < columns; ++j) best = one(scores + j) > best ? one(scores + j) : best;
    int64_t first = 0;
    if (best > -INFINITY)
      while (one(scores + first) != best) ++first;
    out[row] = first;
  }
}

}  // namespace

#define FOR_TYPE(NAME, T)                                                                                              \
  int orthrus_attend_##NAME(T* out, const T* query, int64_t query_stride, const T* key, int64_t key_stride,            \
                            const T* value, int64_t value_stride, const T* key_cache, const T* value_cache,            \
                            const int64_t* items, int64_t count, const int32_t* blocks, int block_size, int heads,     \
                            int kv_heads, int dim, int window, float scale, float softcap, int threads) {              \
    return attend(out, query, query_stride, key, key_stride, value, value_stride, key_cache, value_cache, items,       \
                  count, blocks, block_size, heads, kv_heads, dim, window, scale, softcap, threads);                   \
  }                                                                                                                    \
  void orthrus_normalise_##NAME(T* out, T* residual, const T* x, const T* weight, int64_t rows, int64_t dim,           \
                                float epsilon, int threads) {                                                          \
    add_and_normalise(out, residual, x, weight, rows, dim, epsilon, threads);                                          \
  }                                                                                                                    \
  void orthrus_gate_##NAME(T* out, const T* gate_up, int64_t rows, int64_t dim, int threads) {                         \
    gate(out, gate_up, rows, dim, threads);                                                                            \
  }                                                                                                                    \
  void orthrus_rotate_##NAME(T* qkv, int64_t rows, int heads, int kv_heads, int dim, const float* cosine,              \
                             const float* sine, const T* query_weight, const T* key_weight, float epsilon,             \
                             int threads) {                                                                            \
    rotate(qkv, rows, heads, kv_heads, dim, cosine, sine, query_weight, key_weight, epsilon, threads);                 \
  }                                                                                                                    \
  void orthrus_keep_##NAME(const T* key, int64_t key_stride, const T* value, int64_t value_stride, T* key_cache,       \
                           T* value_cache, const int64_t* slots, int64_t rows, int64_t width) {                        \
    keep(key, key_stride, value, value_stride, key_cache, value_cache, slots, rows, width);                            \
  }                                                                                                                    \
  void orthrus_largest_##NAME(int64_t* out, const T* x, int64_t rows, int64_t columns, int64_t stride, int threads) {  \
    largest(out, x, rows, columns, stride, threads);                                                                   \
  }

extern "C" {
FOR_TYPE(float32, float)
FOR_TYPE(bfloat16, bf16)
}
