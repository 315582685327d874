/* One block of the paper's models, forward and backward, on one core:
 *
 *     convolution 5x5 "same" + bias  ->  GroupNorm (optional)  ->  2x2 max-pool  ->  ReLU
 *
 * Images are N x H x W x C, filters O x 5 x 5 x I, everything float32. A call uses one thread and no memory but the
 * workspace it is given, so any number of threads give the same result. Images are worked on a few at a time, so
 * that everything between input and output stays in a core's cache.
 *
 * What overflows or is not a number is not computed here: Winograd's sums and torch's overflow at different places, and
 * a variance that is infinite makes 1/sqrt(variance) = 0, which looks like a result. Both calls bound every sum from
 * the largest magnitudes that go into it; they return 1 where neither these sums nor torch's can leave float32, and
 * else 0, with nothing of use in their outputs.
 */
#include <math.h>
#include <string.h>

#include "winograd.h"

#define TILES 16 /* tiles of one matrix product; a first layer's image has at most so many in a row */
#define PLACES 64
#define FIRST 4 /* channels of a first layer's padded image */
#define PAD 16  /* floats between two places of a tile, so that they do not fall on the same cache sets */
#define MOST_CHANNELS 512
#define SAFE 1e30 /* a sum's bound; transforms add a factor below 1e6 to it, and float32 ends at 3e38 */
#define KILLED 4 /* the chosen place of a pooling window in which ReLU lets nothing through */

typedef int32_t ivec __attribute__((vector_size(4 * LANES)));
typedef uint8_t bvec __attribute__((vector_size(LANES)));
typedef uint8_t loose_bvec __attribute__((vector_size(LANES), aligned(1), may_alias));

INLINE ivec choose_int(ivec mask, ivec yes, ivec no) { return (mask & yes) | (~mask & no); }
INLINE vec choose(ivec mask, vec yes, vec no) { return (vec)choose_int(mask, (ivec)yes, (ivec)no); }
INLINE ivec splat_int(int value) { return (ivec){0} + value; }
INLINE ivec places(const uint8_t *chosen) { return __builtin_convertvector(*(const loose_bvec *)chosen, ivec); }
INLINE float sum(vec v) {
    float total = 0;
    for (int i = 0; i < LANES; i++) total += v[i];
    return total;
}

/* The largest magnitude of `count` floats. Without their sign, floats are in the order of the integers with the same
 * bits, infinity above all numbers and what is not a number above infinity: so none is overlooked. */
static float peak(const float *p, ptrdiff_t count) {
    int32_t most = 0;
    for (ptrdiff_t i = 0; i < count; i++) {
        int32_t bits;
        memcpy(&bits, p + i, sizeof bits);
        bits &= INT32_MAX;
        most = bits > most ? bits : most;
    }
    float magnitude;
    memcpy(&magnitude, &most, sizeof magnitude);
    return magnitude;
}

typedef struct {
    int64_t images, height, width, in, out, groups; /* groups 0: no GroupNorm */
} shape;

typedef struct {
    int first;              /* a first layer: at most four input channels, kept four apart, several tiles a vector */
    int down, across, each; /* tiles of an image: in a column, in a row, in all */
    int channels;           /* distance of two pixels in a padded image and of two tiles in V, floats */
    int together, chunk;    /* images worked on at once, tiles multiplied at once */
    ptrdiff_t row, padded;  /* a padded image's row, and all of it, floats */
    ptrdiff_t column[8];    /* offsets of a tile's eight columns */
    ptrdiff_t u, v, m;      /* distance of two places in U, V and M */
} plan;

static plan make_plan(const shape *s) {
    plan p;
    p.first = s->in <= FIRST;
    p.down = (s->height + 3) / 4, p.across = (s->width + 3) / 4, p.each = p.down * p.across;
    p.channels = p.first ? FIRST : s->in;
    int per_vector = LANES / FIRST, quads = (p.across + per_vector - 1) / per_vector * per_vector + 1;
    p.row = p.first ? 4 * quads * FIRST : (4 * p.across + 4) * s->in;
    p.padded = (4 * p.down + 4) * p.row;
    for (int j = 0; j < 8; j++)
        p.column[j] = p.first ? ((j % 4) * quads + j / 4) * FIRST : j * s->in;
    p.together = p.first || p.each > TILES ? 1 : TILES / p.each;
    p.chunk = p.first ? TILES / p.across * p.across : TILES;
    p.u = s->in * s->out + PAD;
    p.v = (TILES + per_vector) * p.channels + PAD;
    p.m = TILES * s->out + PAD;
    return p;
}

/* Where pixel (y, x) of the padded image lies; in a first layer, columns x, x + 4, x + 8, ... are neighbours. */
INLINE ptrdiff_t pixel(const plan *p, int y, int x) {
    return y * p->row + (p->first ? p->column[x % 4] + x / 4 * FIRST : x * p->channels);
}

/* The image with a margin of zeros: two pixels above and on the left, the rest up to whole tiles. */
static void pad_image(const shape *s, const plan *p, const float *x, float *padded) {
    memset(padded, 0, p->padded * sizeof(float));
    for (int i = 0; i < s->height; i++) {
        const float *row = x + i * s->width * s->in;
        if (!p->first)
            memcpy(padded + pixel(p, i + 2, 2), row, s->width * s->in * sizeof(float));
        else
            for (int j = 0; j < s->width; j++)
                for (int c = 0; c < s->in; c++) padded[pixel(p, i + 2, j + 2) + c] = row[j * s->in + c];
    }
}

/* V of tiles [from, to) of the images in `padded`. */
static void input_tiles(const plan *p, const float *padded, int from, int to, float *v) {
    int step = p->first ? LANES / FIRST : 1;
    for (int t = from; t < to;) {
        int image = t / p->each, ty = t % p->each / p->across, tx = t % p->across;
        const float *x = padded + image * p->padded + pixel(p, 4 * ty, 4 * tx);
        for (int c = 0; c < p->channels; c += LANES)
            input_tile(x + c, p->row, p->column, v + (t - from) * p->channels + c, p->v);
        t += step < p->across - tx ? step : p->across - tx;
    }
}

/* Y of tiles [from, to) from M; the images' edges cut off what a tile has too much. */
static void output_tiles(const shape *s, const plan *p, const float *m, const float *bias, int from, int to, float *y) {
    for (int t = from; t < to; t++) {
        int image = t / p->each, ty = t % p->each / p->across, tx = t % p->across;
        int rows = s->height - 4 * ty, columns = s->width - 4 * tx;
        float *place = y + ((image * s->height + 4 * ty) * s->width + 4 * tx) * s->out;
        for (int c = 0; c < s->out; c += LANES) {
            const float *source = m + (t - from) * s->out + c;
            if (rows >= 4 && columns >= 4) {
                output_tile(source, p->m, load(bias + c), place + c, s->width * s->out, s->out);
                continue;
            }
            float whole[16 * LANES];
            output_tile(source, p->m, load(bias + c), whole, 4 * LANES, LANES);
            for (int i = 0; i < 4 && i < rows; i++)
                for (int j = 0; j < 4 && j < columns; j++)
                    store(place + (i * s->width + j) * s->out + c, load(whole + (4 * i + j) * LANES));
        }
    }
}

static int round_up(int count) { return (count + ROWS - 1) / ROWS * ROWS; }

/* U[place][in][out] of the filters; `turned` has room for 25 x in x out floats. */
static void filters(const shape *s, const plan *p, const float *weight, float *turned, float *u) {
    for (int o = 0; o < s->out; o++)
        for (int k = 0; k < 25; k++)
            for (int c = 0; c < s->in; c++) turned[(k * s->in + c) * s->out + o] = weight[(o * 25 + k) * s->in + c];
    for (int c = 0; c < s->in * s->out; c += LANES) filter_tile(turned + c, s->in * s->out, u + c, p->u);
}

/* Mean and 1/sqrt(variance + eps) of each group of channels of one image; whether the sum of squares, which is how torch
 * may compute the variance, is far from overflow. */
static int statistics(const shape *s, const float *y, float eps, float *stats) {
    int width = s->out / s->groups, pixels = s->height * s->width, safe = 1;
    for (int g = 0; g < s->groups; g++) {
        vec total = splat(0), squares = splat(0);
        for (int i = 0; i < pixels; i++)
            for (int c = 0; c < width; c += LANES) total += load(y + i * s->out + g * width + c);
        float mean = sum(total) / (pixels * width);
        for (int i = 0; i < pixels; i++)
            for (int c = 0; c < width; c += LANES) {
                vec d = load(y + i * s->out + g * width + c) - mean;
                squares += d * d;
            }
        float deviations = sum(squares);
        stats[2 * g] = mean;
        stats[2 * g + 1] = 1 / sqrtf(deviations / (pixels * width) + eps);
        safe &= deviations + (double)mean * mean * pixels * width < SAFE;
    }
    return safe;
}

/* Scale and shift, 2x2 max-pool (the first of equals wins), ReLU; `chosen` may be absent. */
static void pool(const shape *s, const float *y, const float *scale, const float *shift, float *out, uint8_t *chosen) {
    ptrdiff_t row = s->width * s->out;
    for (int i = 0; i < s->height / 2; i++)
        for (int j = 0; j < s->width / 2; j++)
            for (int c = 0; c < s->out; c += LANES) {
                const float *window = y + 2 * i * row + 2 * j * s->out + c;
                vec a = load(scale + c), b = load(shift + c), best = a * load(window) + b;
                ivec place = splat_int(0);
                for (int k = 1; k < 4; k++) {
                    vec value = a * load(window + k / 2 * row + k % 2 * s->out) + b;
                    ivec more = value > best;
                    best = choose(more, value, best);
                    place = choose_int(more, splat_int(k), place);
                }
                ivec killed = best <= 0;
                ptrdiff_t to = (i * (s->width / 2) + j) * s->out + c;
                store(out + to, choose(killed, splat(0), best));
                if (chosen)
                    *(loose_bvec *)(chosen + to) = __builtin_convertvector(choose_int(killed, splat_int(KILLED), place), bvec);
            }
}

static int finish_image(const shape *s, const float *y, const float *gamma, const float *beta, float eps,
                         float *stats, float *out, uint8_t *chosen) {
    float scale[MOST_CHANNELS], shift[MOST_CHANNELS];
    if (s->groups && !statistics(s, y, eps, stats)) return 0;
    for (int c = 0; c < s->out; c++) {
        int g = s->groups ? c / (s->out / s->groups) : 0;
        scale[c] = s->groups ? gamma[c] * stats[2 * g + 1] : 1;
        shift[c] = s->groups ? beta[c] - stats[2 * g] * scale[c] : 0;
    }
    pool(s, y, scale, shift, out, chosen);
    return 1;
}

/* The gradient of Y of one image, into rows of 4 x across pixels whose margin stays zero; adds to those of gamma
 * and beta. With xhat = (y - mean) / std and d the gradient of the pooled output at the chosen places:
 * dy = (gamma d - mean(gamma d) - xhat mean(gamma d xhat)) / std. */
static void pool_gradient(const shape *s, const plan *p, const float *dout, const uint8_t *chosen, const float *y,
                          const float *stats, const float *gamma, float *dy, float *dgamma, float *dbeta) {
    ptrdiff_t row = s->width * s->out, dy_row = 4 * p->across * s->out, half = s->width / 2 * s->out;
    int width = s->groups ? s->out / s->groups : s->out;
    for (int c0 = 0; c0 < s->out; c0 += width) {
        float mean = s->groups ? stats[2 * (c0 / width)] : 0, rstd = s->groups ? stats[2 * (c0 / width) + 1] : 1;
        float mean_d = 0, mean_dx = 0, count = (float)(s->height * s->width * width);
        for (int c = c0; s->groups && c < c0 + width; c += LANES) {
            vec total_d = splat(0), total_dx = splat(0);
            for (int i = 0; i < s->height / 2; i++)
                for (int j = 0; j < s->width / 2; j++) {
                    const float *window = y + 2 * i * row + 2 * j * s->out + c;
                    ivec place = places(chosen + i * half + j * s->out + c);
                    vec at = load(window);
                    for (int k = 1; k < 4; k++)
                        at = choose(place == k, load(window + k / 2 * row + k % 2 * s->out), at);
                    vec d = choose(place == KILLED, splat(0), load(dout + i * half + j * s->out + c));
                    total_d += d;
                    total_dx += d * ((at - mean) * rstd);
                }
            store(dbeta + c, load(dbeta + c) + total_d);
            store(dgamma + c, load(dgamma + c) + total_dx);
            mean_d += sum(load(gamma + c) * total_d) / count;
            mean_dx += sum(load(gamma + c) * total_dx) / count;
        }
        for (int i = 0; i < s->height / 2; i++)
            for (int j = 0; j < s->width / 2; j++)
                for (int c = c0; c < c0 + width; c += LANES) {
                    ivec place = places(chosen + i * half + j * s->out + c);
                    vec d = load(dout + i * half + j * s->out + c);
                    if (s->groups) d *= load(gamma + c) * rstd;
                    for (int k = 0; k < 4; k++) {
                        vec gradient = choose(place == k, d, splat(0));
                        if (s->groups) {
                            vec at = load(y + (2 * i + k / 2) * row + (2 * j + k % 2) * s->out + c);
                            gradient -= rstd * (mean_d + (at - mean) * rstd * mean_dx);
                        }
                        store(dy + (2 * i + k / 2) * dy_row + (2 * j + k % 2) * s->out + c, gradient);
                    }
                }
    }
}

/* Whether this file computes a block of such a shape. */
int block_supported(const shape *s) {
    int first = s->in <= FIRST && s->width <= 4 * TILES;
    return s->images > 0 && s->height > 0 && s->height % 2 == 0 && s->width > 0 && s->width % 2 == 0 &&
           s->height * s->width <= 1 << 20 && s->in > 0 && (first || s->in % (2 * LANES) == 0) &&
           s->in <= MOST_CHANNELS && s->out % (2 * LANES) == 0 && s->out <= MOST_CHANNELS &&
           (s->groups == 0 || (s->out % s->groups == 0 && s->out / s->groups % LANES == 0));
}

/* Floats of workspace that either call below needs. */
int64_t block_workspace(const shape *s) {
    plan p = make_plan(s);
    int64_t pixels = 16 * (int64_t)p.each, weights = s->in * s->out;
    int64_t forward = PLACES * p.u + 25 * weights + p.together * (p.padded + pixels * s->out) + PLACES * (p.v + p.m);
    return forward + PLACES * (p.u + p.v) + 25 * weights + p.together * p.padded + 16 * PAD;
}

/* Whether the block's sums stay in float32; `x`, `w` and so on are the largest magnitudes. 1/sqrt(eps) is the most that
 * 1/sqrt(variance + eps) can be, SAFE the square of the most that a normalized Y was before. */
INLINE int forward_safe(const shape *s, double x, double w, double bias, double gamma, double beta, double eps) {
    double taps = 25. * s->in * w;
    return x < SAFE && taps < SAFE && taps * x + bias < SAFE &&
           (!s->groups || gamma / sqrt(eps) * sqrt(SAFE) + beta < SAFE);
}

/* The same for the gradients, also with torch's way to GroupNorm's: sums of dout y, times 1/std up to three times. */
INLINE int backward_safe(const shape *s, double dout, double x, double w, double bias, double gamma, double eps) {
    double pixels = s->height * s->width, dy = dout;
    if (s->groups) {
        double values = pixels * (s->out / s->groups), rstd = 1 / sqrt(eps), y = (25. * s->in * w * x + bias) * rstd;
        dy *= (1 + gamma) * (1 + rstd) * (1 + y) * (1 + y) * (values + 2);
    }
    return dy * (1 + x) * s->images * pixels < SAFE && dy * (1 + 25. * s->out * w) < SAFE;
}

/* out (N x H/2 x W/2 x O); for the gradients also chosen (as out), y (N x H x W x O) and stats (N x groups x 2),
 * which may be absent all three. Returns 0 where torch has to compute. */
int block_forward(const shape *s, const float *x, const float *weight, const float *bias, const float *gamma,
                   const float *beta, float eps, float *out, uint8_t *chosen, float *y, float *stats, float *work) {
    plan p = make_plan(s);
    ptrdiff_t pixels = s->height * s->width, pooled = pixels / 4 * s->out;
    float *u = work, *turned = u + PLACES * p.u, *v = turned + 25 * s->in * s->out, *m = v + PLACES * p.v;
    float *padded = m + PLACES * p.m, *scratch = padded + p.together * p.padded;
    float w = peak(weight, 25 * s->in * s->out), b = peak(bias, s->out);
    float g = s->groups ? peak(gamma, s->out) : 0, shift = s->groups ? peak(beta, s->out) : 0;
    filters(s, &p, weight, turned, u);
    for (int first = 0; first < s->images; first += p.together) {
        int count = s->images - first < p.together ? s->images - first : p.together;
        float *here = y ? y + first * pixels * s->out : scratch;
        for (int i = 0; i < count; i++) {
            const float *image = x + (first + i) * pixels * s->in;
            if (!forward_safe(s, peak(image, pixels * s->in), w, b, g, shift, eps)) return 0;
            pad_image(s, &p, image, padded + i * p.padded);
        }
        for (int from = 0; from < count * p.each; from += p.chunk) {
            int to = from + p.chunk < count * p.each ? from + p.chunk : count * p.each;
            input_tiles(&p, padded, from, to, v);
            for (int q = 0; q < PLACES; q++)
                product(round_up(to - from), s->in, s->out, v + q * p.v, p.channels, 1, u + q * p.u, m + q * p.m, 0);
            output_tiles(s, &p, m, bias, from, to, here);
        }
        for (int i = 0; i < count; i++) {
            float own[2 * MOST_CHANNELS];
            if (!finish_image(s, here + i * pixels * s->out, gamma, beta, eps,
                              stats ? stats + 2 * (first + i) * s->groups : own, out + (first + i) * pooled,
                              chosen ? chosen + (first + i) * pooled : NULL))
                return 0;
        }
    }
    return 1;
}

/* The gradients, from that of out and from what block_forward kept; dx may be absent. Gradients of gamma and beta are
 * absent where there is no GroupNorm. Returns 0 where torch has to compute. */
int block_backward(const shape *s, const float *dout, const float *x, const float *weight, const float *bias,
                   const float *gamma, float eps, const uint8_t *chosen, const float *y, const float *stats, float *dx,
                   float *dweight, float *dbias, float *dgamma, float *dbeta, float *work) {
    plan p = make_plan(s);
    ptrdiff_t pixels = s->height * s->width, pooled = pixels / 4 * s->out, weights = s->in * s->out;
    ptrdiff_t dy_row = 4 * p.across * s->out, dy_image = 4 * p.down * dy_row;
    float *u = work, *du = u + PLACES * p.u, *turned = du + PLACES * p.u, *v = turned + 25 * weights;
    float *dv = v + PLACES * p.v, *z = dv + PLACES * p.v, *padded = z + PLACES * p.m;
    float *dpadded = padded + p.together * p.padded, *dy = dpadded + p.together * p.padded;
    float w = peak(weight, 25 * weights), b = peak(bias, s->out), g = s->groups ? peak(gamma, s->out) : 0;
    memset(du, 0, PLACES * p.u * sizeof(float));
    memset(dy, 0, p.together * dy_image * sizeof(float));
    memset(dbias, 0, s->out * sizeof(float));
    if (s->groups) memset(dgamma, 0, s->out * sizeof(float)), memset(dbeta, 0, s->out * sizeof(float));
    for (int o = 0; dx && o < s->out; o++) /* U[place][out][in] */
        for (int c = 0; c < s->in; c += LANES) filter_tile(weight + o * 25 * s->in + c, s->in, u + o * s->in + c, p.u);
    for (int first = 0; first < s->images; first += p.together) {
        int count = s->images - first < p.together ? s->images - first : p.together;
        if (dx) memset(dpadded, 0, count * p.padded * sizeof(float));
        for (int i = 0; i < count; i++) {
            ptrdiff_t image = first + i;
            const float *here = x + image * pixels * s->in;
            float x_peak = peak(here, pixels * s->in), dout_peak = peak(dout + image * pooled, pooled);
            if (!backward_safe(s, dout_peak, x_peak, w, b, g, eps)) return 0;
            pad_image(s, &p, here, padded + i * p.padded);
            pool_gradient(s, &p, dout + image * pooled, chosen + image * pooled, y + image * pixels * s->out,
                          stats + 2 * image * s->groups, gamma, dy + i * dy_image, dgamma, dbeta);
            for (int c = 0; c < s->out; c += LANES) {
                vec total = load(dbias + c);
                for (int k = 0; k < 16 * p.each; k++) total += load(dy + i * dy_image + k * s->out + c);
                store(dbias + c, total);
            }
        }
        for (int from = 0; from < count * p.each; from += p.chunk) {
            int to = from + p.chunk < count * p.each ? from + p.chunk : count * p.each;
            input_tiles(&p, padded, from, to, v);
            for (int t = from; t < to; t++) {
                const float *tile = dy + t / p.each * dy_image + t % p.each / p.across * 4 * dy_row +
                                    t % p.across * 4 * s->out;
                for (int c = 0; c < s->out; c += LANES)
                    output_gradient_tile(tile + c, dy_row, s->out, z + (t - from) * s->out + c, p.m);
            }
            for (int q = 0; q < PLACES; q++)
                product(s->in, to - from, s->out, v + q * p.v, 1, p.channels, z + q * p.m, du + q * p.u, 1);
            if (!dx) continue;
            for (int q = 0; q < PLACES; q++)
                product(round_up(to - from), s->out, s->in, z + q * p.m, s->out, 1, u + q * p.u, dv + q * p.v, 0);
            for (int t = from; t < to; t++) {
                float *place = dpadded + t / p.each * p.padded +
                               pixel(&p, t % p.each / p.across * 4, t % p.across * 4);
                for (int c = 0; c < s->in; c += LANES)
                    input_gradient_tile(dv + (t - from) * s->in + c, p.v, place + c, p.row, s->in);
            }
        }
        for (int i = 0; dx && i < count; i++)
            for (int j = 0; j < s->height; j++)
                memcpy(dx + ((first + i) * pixels + j * s->width) * s->in, dpadded + i * p.padded + pixel(&p, j + 2, 2),
                       s->width * s->in * sizeof(float));
    }
    for (int c = 0; c < weights; c += LANES) filter_gradient_tile(du + c, p.u, turned + c, weights);
    for (int o = 0; o < s->out; o++)
        for (int k = 0; k < 25; k++)
            for (int c = 0; c < s->in; c++) dweight[(o * 25 + k) * s->in + c] = turned[(k * s->in + c) * s->out + o];
    return 1;
}
