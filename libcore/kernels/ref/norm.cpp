#include "libcore/ops/norm.h"

#include <array>
#include <cmath>

#include "libcore/kernels/ref/activation.h"
#include "libcore/kernels/ref/table.h"

namespace galley {
namespace {

/// Which statistics an element belongs to, and which gamma and beta.
struct Grouping {
  int64_t sets = 0;     // of statistics
  int64_t count = 0;    // elements of each
  int64_t affine = 0;   // gammas
  std::vector<int64_t> set_of, affine_of;
};

Grouping batch_grouping(const Shape& x) {
  Grouping g;
  const int64_t total = x.elements();
  int64_t inner = 1;
  for (int d = 2; d < x.rank(); ++d) inner *= x[d];
  g.sets = g.affine = x[1];
  g.count = x[1] == 0 ? 0 : total / x[1];
  for (int64_t i = 0; i < total; ++i) g.set_of.push_back(i / inner % x[1]);
  g.affine_of = g.set_of;
  return g;
}

Grouping layer_grouping(const Shape& x, int64_t dims) {
  Grouping g;
  const int64_t total = x.elements();
  g.count = 1;
  for (int d = x.rank() - static_cast<int>(dims); d < x.rank(); ++d) g.count *= x[d];
  g.affine = g.count;
  g.sets = g.count == 0 ? 0 : total / g.count;
  for (int64_t i = 0; i < total; ++i) {
    g.set_of.push_back(i / g.count);
    g.affine_of.push_back(i % g.count);
  }
  return g;
}

Grouping group_grouping(const Shape& x, int64_t groups) {
  Grouping g;
  const int64_t total = x.elements();
  int64_t inner = 1;
  for (int d = 2; d < x.rank(); ++d) inner *= x[d];
  g.sets = x[0] * groups;
  g.count = g.sets == 0 ? 0 : total / g.sets;
  g.affine = x[1];
  for (int64_t i = 0; i < total; ++i) {
    const int64_t n = i / inner / x[1], c = i / inner % x[1];
    g.set_of.push_back(n * groups + c / (x[1] / groups));
    g.affine_of.push_back(c);
  }
  return g;
}

struct Statistics {
  std::vector<double> mean, var;
};

Statistics statistics_of(const RefArray& x, const Grouping& g) {
  Statistics s{std::vector<double>(static_cast<size_t>(g.sets)), std::vector<double>(static_cast<size_t>(g.sets))};
  for (size_t i = 0; i < x.v.size(); ++i) s.mean[static_cast<size_t>(g.set_of[i])] += x.v[i] / static_cast<double>(g.count);
  for (size_t i = 0; i < x.v.size(); ++i) {
    const auto set = static_cast<size_t>(g.set_of[i]);
    s.var[set] += (x.v[i] - s.mean[set]) * (x.v[i] - s.mean[set]) / static_cast<double>(g.count);
  }
  return s;
}

double at(const RefArray* array, int64_t i, double missing) { return array ? (*array)[i] : missing; }
const RefArray* given(const RefCall& call, size_t i) { return call.has(i) ? &call.in(i) : nullptr; }

/// dx, dgamma, dbeta of y = gamma xhat + beta from the gradient of y:
/// dx = gamma' rstd (g - mean(g) - xhat mean(g xhat)), with gamma inside the means.
void backward(const RefArray& grad, const RefArray& x, const Grouping& g, const std::vector<double>& mean, const std::vector<double>& rstd,
              const RefArray* gamma, RefArray& dx, RefArray& dgamma, RefArray& dbeta) {
  std::vector<double> sum(static_cast<size_t>(g.sets)), dot(static_cast<size_t>(g.sets));
  const auto xhat = [&](size_t i) {
    const auto set = static_cast<size_t>(g.set_of[i]);
    return (x.v[i] - mean[set]) * rstd[set];
  };
  for (size_t i = 0; i < x.v.size(); ++i) {
    const double scaled = grad.v[i] * at(gamma, g.affine_of[i], 1);
    sum[static_cast<size_t>(g.set_of[i])] += scaled;
    dot[static_cast<size_t>(g.set_of[i])] += scaled * xhat(i);
    dgamma[g.affine_of[i]] += grad.v[i] * xhat(i);
    dbeta[g.affine_of[i]] += grad.v[i];
  }
  for (size_t i = 0; i < x.v.size(); ++i) {
    const auto set = static_cast<size_t>(g.set_of[i]);
    const double scaled = grad.v[i] * at(gamma, g.affine_of[i], 1);
    dx.v[i] = rstd[set] * (scaled - sum[set] / static_cast<double>(g.count) - xhat(i) * dot[set] / static_cast<double>(g.count));
  }
}

void batch_norm_ref(RefCall& call) {
  const auto& a = call.attrs<BatchNormAttrs>();
  const RefArray& x = call.in(0);
  const Grouping g = batch_grouping(x.shape);
  const Statistics s = statistics_of(x, g);
  for (size_t i = 0; i < x.v.size(); ++i) {
    const auto c = static_cast<size_t>(g.set_of[i]);
    double y = at(given(call, 1), g.set_of[i], 1) * (x.v[i] - s.mean[c]) / std::sqrt(s.var[c] + a.eps) + at(given(call, 2), g.set_of[i], 0);
    if (call.has(3)) y += call.in(3).v[i];
    call.out(0).v[i] = apply_activation(a.activation, y);
  }
  call.out(1).v = s.mean;
  call.out(2).v = s.var;
}

void batch_norm_backward_ref(RefCall& call) {
  const auto& a = call.attrs<BatchNormBackwardAttrs>();
  const RefArray& x = call.in(1);
  RefArray grad = call.in(0);
  if (a.activation == Activation::kRelu) {
    for (size_t i = 0; i < grad.v.size(); ++i) grad.v[i] = call.in(5).v[i] > 0 ? grad.v[i] : 0;
  }
  std::vector<double> rstd;
  for (double var : call.in(3).v) rstd.push_back(1 / std::sqrt(var + a.eps));
  backward(grad, x, batch_grouping(x.shape), call.in(2).v, rstd, given(call, 4), call.out(0), call.out(1), call.out(2));
  if (a.residual) call.out(3).v = grad.v;
}

void batch_norm_inference_ref(RefCall& call) {
  const auto& a = call.attrs<BatchNormInferenceAttrs>();
  const RefArray& x = call.in(0);
  const Grouping g = batch_grouping(x.shape);
  for (size_t i = 0; i < x.v.size(); ++i) {
    const int64_t c = g.set_of[i];
    const double y = at(given(call, 1), c, 1) * (x.v[i] - call.in(3)[c]) / std::sqrt(call.in(4)[c] + a.eps) + at(given(call, 2), c, 0);
    call.out().v[i] = apply_activation(a.activation, y);
  }
}

void batch_norm_update_ref(RefCall& call) {
  const auto& a = call.attrs<BatchNormUpdateAttrs>();
  const double n = static_cast<double>(a.count);
  for (int64_t c = 0; c < call.in(0).shape[0]; ++c) {
    call.out(0)[c] = (1 - a.momentum) * call.in(0)[c] + a.momentum * call.in(2)[c];
    call.out(1)[c] = (1 - a.momentum) * call.in(1)[c] + a.momentum * call.in(3)[c] * (n > 1 ? n / (n - 1) : 1);
  }
  if (call.has(4)) call.out(2)[0] = call.in(4)[0] + 1;
}

/// Forward of layer and group norm: y, mean, rstd.
void forward(RefCall& call, const Grouping& g, double eps) {
  const RefArray& x = call.in(0);
  const Statistics s = statistics_of(x, g);
  for (size_t set = 0; set < s.mean.size(); ++set) {
    call.out(1).v[set] = s.mean[set];
    call.out(2).v[set] = 1 / std::sqrt(s.var[set] + eps);
  }
  for (size_t i = 0; i < x.v.size(); ++i) {
    const int64_t set = g.set_of[i];
    call.out(0).v[i] = at(given(call, 1), g.affine_of[i], 1) * (x.v[i] - call.out(1)[set]) * call.out(2)[set] + at(given(call, 2), g.affine_of[i], 0);
  }
}

void layer_norm_ref(RefCall& call) {
  const auto& a = call.attrs<LayerNormAttrs>();
  forward(call, layer_grouping(call.in(0).shape, a.dims), a.eps);
}
void group_norm_ref(RefCall& call) {
  const auto& a = call.attrs<GroupNormAttrs>();
  forward(call, group_grouping(call.in(0).shape, a.groups), a.eps);
}
void layer_norm_backward_ref(RefCall& call) {
  backward(call.in(0), call.in(1), layer_grouping(call.in(1).shape, call.attrs<LayerNormBackwardAttrs>().dims), call.in(2).v, call.in(3).v, given(call, 4),
           call.out(0), call.out(1), call.out(2));
}
void group_norm_backward_ref(RefCall& call) {
  backward(call.in(0), call.in(1), group_grouping(call.in(1).shape, call.attrs<GroupNormBackwardAttrs>().groups), call.in(2).v, call.in(3).v, given(call, 4),
           call.out(0), call.out(1), call.out(2));
}

constexpr std::array kEntries{RefEntry{"batch_norm", batch_norm_ref},
                              RefEntry{"batch_norm_backward", batch_norm_backward_ref},
                              RefEntry{"batch_norm_inference", batch_norm_inference_ref},
                              RefEntry{"batch_norm_update", batch_norm_update_ref},
                              RefEntry{"layer_norm", layer_norm_ref},
                              RefEntry{"layer_norm_backward", layer_norm_backward_ref},
                              RefEntry{"group_norm", group_norm_ref},
                              RefEntry{"group_norm_backward", group_norm_backward_ref}};

}  // namespace

std::span<const RefEntry> ref_norm() { return kEntries; }

}  // namespace galley
