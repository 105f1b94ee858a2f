// Vectors of floats, and how they get in and out of memory: GCC's own extension, as wide as the machine that compiles has
// them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX__)
#include <immintrin.h>
#endif

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

// Numbers of 16 bits to 32; GCC's own conversion goes by halves of a vector.
inline vu widened(vh x) {
#if defined(__AVX512F__)
  return (vu)_mm512_cvtepu16_epi32((__m256i)x);
#elif defined(__AVX2__)
  return (vu)_mm256_cvtepu16_epi32((__m128i)x);
#else
  return __builtin_convertvector(x, vu);
#endif
}

inline vf splat(float x) { return x - vf{}; }

inline vf load(const float* p) {
  vf x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
inline vf load(const bf16* p) {
  vh h;
  std::memcpy(&h, p, sizeof h);
  return (vf)(widened(h) << 16);
}
inline void store(float* p, vf x) { std::memcpy(p, &x, sizeof x); }
// To nearest, ties to even; a NaN stays one.
inline vh narrowed(vf x) {
#if defined(__AVX512BF16__)
  return (vh)_mm512_cvtneps_pbh((__m512)x);
#else
  const vu bits = (vu)x;
  const vu rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const vu quiet = (bits >> 16) | 0x40;
  const vu halves = ((vu)(x == x) & rounded) | (~(vu)(x == x) & quiet);
#if defined(__AVX512F__)
  return (vh)_mm512_cvtepi32_epi16((__m512i)halves);
#else
  return __builtin_convertvector(halves, vh);
#endif
#endif
}
inline void store(bf16* p, vf x) {
  const vh h = narrowed(x);
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

// Lanes of two vectors, which hold the sums of as many parts of LENGTH lanes each: of every part its first half, or with
// `OFFSET` its second.
template <int LENGTH, int OFFSET>
struct Halves {
  int32_t lanes[W];
  constexpr Halves() : lanes() {
    constexpr int half = LENGTH / 2;
    for (int i = 0; i < W; ++i) lanes[i] = i / half * LENGTH + i % half + OFFSET;
  }
};
template <int LENGTH, int OFFSET>
inline vf halves(vf a, vf b) {
  static constexpr Halves<LENGTH, OFFSET> chosen;
  vi lanes;
  std::memcpy(&lanes, chosen.lanes, sizeof lanes);
  return __builtin_shuffle(a, b, lanes);
}

// The sums over the lanes of COUNT vectors, each in a part of its own of the result.
template <int COUNT = W>
inline vf totals(const float (*x)[W]) {
  if constexpr (COUNT == 1) {
    return load(x[0]);
  } else {
    constexpr int length = W / (COUNT / 2);
    const vf a = totals<COUNT / 2>(x), b = totals<COUNT / 2>(x + COUNT / 2);
    return halves<length, 0>(a, b) + halves<length, length / 2>(a, b);
  }
}

inline vf nearest(vf x) {
#if defined(__AVX512F__)
  return (vf)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  return (x + 12582912.0f) - 12582912.0f;  // 1.5 * 2^23: there is no room for a fraction
#endif
}

// x * 2^n; `n` is whole, and from -126 to 127 where the result is used.
inline vf times_power_of_two(vf x, vf n) {
#if defined(__AVX512F__)
  return (vf)_mm512_scalef_ps((__m512)x, (__m512)n);
#else
  return x * (vf)((__builtin_convertvector(n, vi) + 127) << 23);
#endif
}

// exp by range reduction to [-ln2/2, ln2/2] and a Taylor polynomial: relative error below 2e-7; 0 below -87, and above 88
// what it is there.
inline vf exponential(vf x) {
  const vi small = x < splat(-87.0f);
  x = x > splat(88.0f) ? splat(88.0f) : x;  // NaN stays
  const vf n = nearest(x * 1.44269504088896341f);
  const vf r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts
  vf p = splat(1.0f / 5040);
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  return (vf)((vi)times_power_of_two(p, n) & ~small);
}

// 1 / x within a few units of the last place, without a division where the processor has something faster.
inline vf reciprocal(vf x) {
#if defined(__AVX512F__)
  const vf r = (vf)_mm512_rcp14_ps((__m512)x);
  return r * (2 - x * r);  // a step of Newton's
#else
  return 1 / x;
#endif
}

inline vf silu(vf x) { return x * reciprocal(1 + exponential(-x)); }

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
