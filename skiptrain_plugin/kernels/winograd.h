/* Winograd's F(4x4, 5x5): Y = A'[(G g G') * (B' d B)]A with 8x8 tiles d of the input, 5x5 filters g, and the points
 * 0, 1, -1, 2, -2, 1/2, -1/2, infinity. The product is elementwise over the 64 places of a tile and a sum over
 * channels, that is 64 small matrix products: 4 multiplications an output instead of 25. The gradients are those of
 * this very formula: with Z = A dY A' they are dU = V'Z and dV = Z U', where U = G g G' and V = B' d B.
 */
#include <stddef.h>
#include <stdint.h>

#if defined(__AVX512F__)
#define LANES 16
#define ROWS 8
#elif defined(__AVX__)
#define LANES 8
#define ROWS 4
#else
#define LANES 4
#define ROWS 4
#endif

#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef float loose_vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

INLINE vec load(const float *p) { return *(const loose_vec *)p; }
INLINE void store(float *p, vec v) { *(loose_vec *)p = v; }
INLINE vec splat(float s) { return (vec){0} + s; }

/* The six one-dimensional transforms, in place or from `in` to `out`. */

INLINE void input_transform(vec *d) { /* B'd: 8 -> 8 */
    vec a = d[2] + d[6] - 4.25f * d[4], b = d[1] + d[5] - 4.25f * d[3];
    vec c = d[6] + 0.25f * d[2] - 1.25f * d[4], e = 0.5f * d[1] - 2.5f * d[3] + 2.0f * d[5];
    vec f = d[6] + 4.0f * d[2] - 5.0f * d[4], g = 2.0f * d[1] - 2.5f * d[3] + 0.5f * d[5];
    vec first = d[0] - d[6] + 5.25f * (d[4] - d[2]), last = d[7] - d[1] + 5.25f * (d[3] - d[5]);
    d[0] = first, d[1] = a + b, d[2] = a - b, d[3] = c + e, d[4] = c - e, d[5] = f + g, d[6] = f - g, d[7] = last;
}

INLINE void input_gradient(vec *v) { /* Bv: 8 -> 8 */
    vec s1 = v[1] + v[2], m1 = v[1] - v[2], s2 = v[3] + v[4], m2 = v[3] - v[4], s3 = v[5] + v[6], m3 = v[5] - v[6];
    vec v0 = v[0], v7 = v[7];
    v[1] = m1 + 0.5f * m2 + 2.0f * m3 - v7;
    v[2] = s1 + 0.25f * s2 + 4.0f * s3 - 5.25f * v0;
    v[3] = 5.25f * v7 - 4.25f * m1 - 2.5f * (m2 + m3);
    v[4] = 5.25f * v0 - 4.25f * s1 - 1.25f * s2 - 5.0f * s3;
    v[5] = m1 + 2.0f * m2 + 0.5f * m3 - 5.25f * v7;
    v[6] = s1 + s2 + s3 - v0;
}

INLINE void output_transform(const vec *m, vec *y) { /* A'm: 8 -> 4 */
    vec s1 = m[1] + m[2], m1 = m[1] - m[2], s2 = m[3] + m[4], m2 = m[3] - m[4], s3 = m[5] + m[6], m3 = m[5] - m[6];
    y[0] = m[0] + s1 + s2 + s3;
    y[1] = m1 + 2.0f * m2 + 0.5f * m3;
    y[2] = s1 + 4.0f * s2 + 0.25f * s3;
    y[3] = m1 + 8.0f * m2 + 0.125f * m3 + m[7];
}

INLINE void output_gradient(const vec *y, vec *z) { /* Ay: 4 -> 8 */
    vec a = y[0] + y[2], b = y[1] + y[3], c = y[0] + 4.0f * y[2], d = 2.0f * y[1] + 8.0f * y[3];
    vec e = y[0] + 0.25f * y[2], f = 0.5f * y[1] + 0.125f * y[3];
    z[0] = y[0], z[1] = a + b, z[2] = a - b, z[3] = c + d, z[4] = c - d, z[5] = e + f, z[6] = e - f, z[7] = y[3];
}

INLINE void filter_transform(const vec *g, vec *u) { /* Gg: 5 -> 8 */
    vec a = g[0] + g[2] + g[4], b = g[1] + g[3];
    vec c = g[0] + 4.0f * g[2] + 16.0f * g[4], d = 2.0f * g[1] + 8.0f * g[3];
    vec e = g[0] + 0.25f * g[2] + 0.0625f * g[4], f = 0.5f * g[1] + 0.125f * g[3];
    const float p = -2.0f / 9, q = 1.0f / 90, r = 32.0f / 45;
    u[0] = g[0], u[1] = p * (a + b), u[2] = p * (a - b), u[3] = q * (c + d), u[4] = q * (c - d);
    u[5] = r * (e + f), u[6] = r * (e - f), u[7] = g[4];
}

INLINE void filter_gradient(const vec *u, vec *g) { /* G'u: 8 -> 5 */
    const float p = -2.0f / 9, q = 1.0f / 90, r = 32.0f / 45;
    vec s1 = p * (u[1] + u[2]), m1 = p * (u[1] - u[2]), s2 = q * (u[3] + u[4]), m2 = q * (u[3] - u[4]);
    vec s3 = r * (u[5] + u[6]), m3 = r * (u[5] - u[6]);
    g[0] = u[0] + s1 + s2 + s3;
    g[1] = m1 + 2.0f * m2 + 0.5f * m3;
    g[2] = s1 + 4.0f * s2 + 0.25f * s3;
    g[3] = m1 + 8.0f * m2 + 0.125f * m3;
    g[4] = s1 + 16.0f * s2 + 0.0625f * s3 + u[7];
}

/* The same in two dimensions, for as many channels (or channels of neighbouring tiles) as there are lanes. */

static void input_tile(const float *x, ptrdiff_t row, const ptrdiff_t *column, float *v, ptrdiff_t place) {
    vec t[8][8];
    for (int j = 0; j < 8; j++) {
        vec d[8];
        for (int i = 0; i < 8; i++) d[i] = load(x + i * row + column[j]);
        input_transform(d);
        for (int i = 0; i < 8; i++) t[i][j] = d[i];
    }
    for (int i = 0; i < 8; i++) {
        input_transform(t[i]);
        for (int j = 0; j < 8; j++) store(v + (8 * i + j) * place, t[i][j]);
    }
}

static void input_gradient_tile(const float *v, ptrdiff_t place, float *dx, ptrdiff_t row, ptrdiff_t column) {
    vec t[8][8];
    for (int j = 0; j < 8; j++) {
        vec d[8];
        for (int i = 0; i < 8; i++) d[i] = load(v + (8 * i + j) * place);
        input_gradient(d);
        for (int i = 0; i < 8; i++) t[i][j] = d[i];
    }
    for (int i = 0; i < 8; i++) {
        input_gradient(t[i]);
        for (int j = 0; j < 8; j++) {
            float *to = dx + i * row + j * column;
            store(to, load(to) + t[i][j]);
        }
    }
}

static void output_tile(const float *m, ptrdiff_t place, vec bias, float *y, ptrdiff_t row, ptrdiff_t column) {
    vec t[4][8];
    for (int j = 0; j < 8; j++) {
        vec d[8], o[4];
        for (int i = 0; i < 8; i++) d[i] = load(m + (8 * i + j) * place);
        output_transform(d, o);
        for (int i = 0; i < 4; i++) t[i][j] = o[i];
    }
    for (int i = 0; i < 4; i++) {
        vec o[4];
        output_transform(t[i], o);
        for (int j = 0; j < 4; j++) store(y + i * row + j * column, o[j] + bias);
    }
}

static void output_gradient_tile(const float *dy, ptrdiff_t row, ptrdiff_t column, float *z, ptrdiff_t place) {
    vec t[8][4];
    for (int j = 0; j < 4; j++) {
        vec d[4], o[8];
        for (int i = 0; i < 4; i++) d[i] = load(dy + i * row + j * column);
        output_gradient(d, o);
        for (int i = 0; i < 8; i++) t[i][j] = o[i];
    }
    for (int i = 0; i < 8; i++) {
        vec o[8];
        output_gradient(t[i], o);
        for (int j = 0; j < 8; j++) store(z + (8 * i + j) * place, o[j]);
    }
}

/* Filters w[tap][...] with `tap` floats between taps, to u[place][...]. */
static void filter_tile(const float *w, ptrdiff_t tap, float *u, ptrdiff_t place) {
    vec t[8][5];
    for (int j = 0; j < 5; j++) {
        vec d[5], o[8];
        for (int i = 0; i < 5; i++) d[i] = load(w + (5 * i + j) * tap);
        filter_transform(d, o);
        for (int i = 0; i < 8; i++) t[i][j] = o[i];
    }
    for (int i = 0; i < 8; i++) {
        vec o[8];
        filter_transform(t[i], o);
        for (int j = 0; j < 8; j++) store(u + (8 * i + j) * place, o[j]);
    }
}

static void filter_gradient_tile(const float *u, ptrdiff_t place, float *dw, ptrdiff_t tap) {
    vec t[5][8];
    for (int j = 0; j < 8; j++) {
        vec d[8], o[5];
        for (int i = 0; i < 8; i++) d[i] = load(u + (8 * i + j) * place);
        filter_gradient(d, o);
        for (int i = 0; i < 5; i++) t[i][j] = o[i];
    }
    for (int i = 0; i < 5; i++) {
        vec o[5];
        filter_gradient(t[i], o);
        for (int j = 0; j < 5; j++) store(dw + (5 * i + j) * tap, o[j]);
    }
}

/* c[r][0..2 LANES) (+)= sum over k of a[r * a_row + k * a_k] b[k][0..2 LANES), for `rows` <= ROWS rows. */
INLINE void product_rows(int rows, int depth, const float *a, ptrdiff_t a_row, ptrdiff_t a_k, const float *b,
                         ptrdiff_t b_k, float *c, ptrdiff_t c_row, int add) {
    vec left[ROWS], right[ROWS];
    for (int r = 0; r < rows; r++) {
        left[r] = add ? load(c + r * c_row) : splat(0);
        right[r] = add ? load(c + r * c_row + LANES) : splat(0);
    }
    for (int k = 0; k < depth; k++) {
        vec b0 = load(b + k * b_k), b1 = load(b + k * b_k + LANES);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            vec s = splat(a[r * a_row + k * a_k]);
            left[r] += s * b0;
            right[r] += s * b1;
        }
    }
    for (int r = 0; r < rows; r++) {
        store(c + r * c_row, left[r]);
        store(c + r * c_row + LANES, right[r]);
    }
}

static void product(int rows, int depth, int columns, const float *a, ptrdiff_t a_row, ptrdiff_t a_k, const float *b,
                    float *c, int add) {
    for (int j = 0; j < columns; j += 2 * LANES) {
        int r = 0;
        for (; r + ROWS <= rows; r += ROWS)
            product_rows(ROWS, depth, a + r * a_row, a_row, a_k, b + j, columns, c + r * columns + j, columns, add);
        for (; r < rows; r++)
            product_rows(1, depth, a + r * a_row, a_row, a_k, b + j, columns, c + r * columns + j, columns, add);
    }
}
