// Vectors of floats, and how they get in and out of memory: GCC's own extension, as wide as the machine that compiles has
// them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

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

}  // namespace
