#include "libcore/ops/recurrent.h"

#include <cmath>

#include "libcore/backends/ref/ref.h"

namespace galley {
namespace {

double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

double value_or(const RefCall& call, size_t input, int64_t i, double otherwise = 0) { return call.has(input) ? call.in(input)[i] : otherwise; }

/// The steps of a sequence in the order in which a layer walks them.
struct Walk {
  int64_t steps;
  bool reverse;
  int64_t at(int64_t turn) const { return reverse ? steps - 1 - turn : turn; }
};

/// Of a forward call: x, weight_ih, weight_hh, bias_ih?, bias_hh?, h0?.
struct Forward {
  explicit Forward(RefCall& c) : call(c), batch(c.in(0).shape[0]), steps(c.in(0).shape[1]), in(c.in(0).shape[2]), hidden(c.in(2).shape[1]) {}
  /// Row `row` of W_ih x + b_ih at a step.
  double of_input(int64_t n, int64_t t, int64_t row) const {
    double sum = value_or(call, 3, row);
    for (int64_t k = 0; k < in; ++k) sum += call.in(1)[row * in + k] * call.in(0)[(n * steps + t) * in + k];
    return sum;
  }
  /// Row `row` of W_hh h + b_hh.
  double of_hidden(const std::vector<double>& h, int64_t row) const {
    double sum = value_or(call, 4, row);
    for (int64_t k = 0; k < hidden; ++k) sum += call.in(2)[row * hidden + k] * h[static_cast<size_t>(k)];
    return sum;
  }
  /// A row of h0 or c0, or zeros.
  std::vector<double> state(size_t input, int64_t n) const {
    std::vector<double> row(static_cast<size_t>(hidden));
    for (int64_t u = 0; u < hidden; ++u) row[static_cast<size_t>(u)] = value_or(call, input, n * hidden + u);
    return row;
  }
  void put(size_t output, int64_t row, const std::vector<double>& values) const {
    for (int64_t u = 0; u < hidden; ++u) call.out(output)[row * hidden + u] = values[static_cast<size_t>(u)];
  }

  RefCall& call;
  int64_t batch, steps, in, hidden;
};

void lstm_ref(RefCall& call) {
  const auto& attrs = call.attrs<RecurrentAttrs>();
  const Forward f(call);
  const Walk walk{f.steps, attrs.reverse};
  for (int64_t n = 0; n < f.batch; ++n) {
    std::vector<double> h = f.state(5, n), c = f.state(6, n);
    for (int64_t turn = 0; turn < f.steps; ++turn) {
      const int64_t t = walk.at(turn), row = n * f.steps + t;
      std::vector<double> next = h;
      for (int64_t u = 0; u < f.hidden; ++u) {
        const auto argument = [&](int64_t gate) { return f.of_input(n, t, gate * f.hidden + u) + f.of_hidden(h, gate * f.hidden + u); };
        const double gates[4] = {sigmoid_of(argument(0)), sigmoid_of(argument(1)), std::tanh(argument(2)), sigmoid_of(argument(3))};
        double& cell = c[static_cast<size_t>(u)];
        cell = gates[1] * cell + gates[0] * gates[2];
        next[static_cast<size_t>(u)] = gates[3] * std::tanh(cell);
        for (int64_t gate = 0; attrs.save && gate < 4; ++gate) call.out(3)[(row * 4 + gate) * f.hidden + u] = gates[gate];
      }
      h = next;
      f.put(0, row, h);
      if (attrs.save) f.put(4, row, c);
    }
    f.put(1, n, h);
    f.put(2, n, c);
  }
}

void gru_ref(RefCall& call) {
  const auto& attrs = call.attrs<RecurrentAttrs>();
  const Forward f(call);
  const Walk walk{f.steps, attrs.reverse};
  for (int64_t n = 0; n < f.batch; ++n) {
    std::vector<double> h = f.state(5, n);
    for (int64_t turn = 0; turn < f.steps; ++turn) {
      const int64_t t = walk.at(turn), row = n * f.steps + t;
      std::vector<double> next = h;
      for (int64_t u = 0; u < f.hidden; ++u) {
        const auto argument = [&](int64_t gate) { return f.of_input(n, t, gate * f.hidden + u) + f.of_hidden(h, gate * f.hidden + u); };
        const double r = sigmoid_of(argument(0)), z = sigmoid_of(argument(1)), q = f.of_hidden(h, 2 * f.hidden + u);
        const double candidate = std::tanh(f.of_input(n, t, 2 * f.hidden + u) + r * q);
        next[static_cast<size_t>(u)] = (1 - z) * candidate + z * h[static_cast<size_t>(u)];
        const double saved[4] = {r, z, candidate, q};
        for (int64_t gate = 0; attrs.save && gate < 4; ++gate) call.out(2)[(row * 4 + gate) * f.hidden + u] = saved[gate];
      }
      h = next;
      f.put(0, row, h);
    }
    f.put(1, n, h);
  }
}

void rnn_ref(RefCall& call) {
  const auto& attrs = call.attrs<RnnAttrs>();
  const Forward f(call);
  const Walk walk{f.steps, attrs.reverse};
  for (int64_t n = 0; n < f.batch; ++n) {
    std::vector<double> h = f.state(5, n);
    for (int64_t turn = 0; turn < f.steps; ++turn) {
      const int64_t t = walk.at(turn);
      std::vector<double> next = h;
      for (int64_t u = 0; u < f.hidden; ++u) {
        const double a = f.of_input(n, t, u) + f.of_hidden(h, u);
        next[static_cast<size_t>(u)] = attrs.nonlinearity == Nonlinearity::kTanh ? std::tanh(a) : a < 0 ? 0 : a;  // NaN stays
      }
      h = next;
      f.put(0, n * f.steps + t, h);
    }
    f.put(1, n, h);
  }
}

/// W_hh^T d: what the rows `d` of a step give to the h before it.
double carried(const RefArray& weight_hh, const RefArray& d, int64_t row, int64_t u) {
  const int64_t rows = weight_hh.shape[0], hidden = weight_hh.shape[1];
  double sum = 0;
  for (int64_t r = 0; r < rows; ++r) sum += weight_hh[r * hidden + u] * d[row * rows + r];
  return sum;
}

void lstm_backward_ref(RefCall& call) {
  const RefArray &gates = call.in(3), &cells = call.in(4), &weight = call.in(5);
  const int64_t batch = cells.shape[0], steps = cells.shape[1], hidden = cells.shape[2];
  const Walk walk{steps, call.attrs<RecurrentBackwardAttrs>().reverse};
  for (int64_t n = 0; n < batch; ++n) {
    for (int64_t u = 0; u < hidden; ++u) {
      call.out(1)[n * hidden + u] = value_or(call, 1, n * hidden + u);
      call.out(2)[n * hidden + u] = value_or(call, 2, n * hidden + u);
    }
    for (int64_t turn = steps - 1; turn >= 0; --turn) {
      const int64_t row = n * steps + walk.at(turn);
      for (int64_t u = 0; u < hidden; ++u) {
        const auto gate = [&](int64_t g) { return gates[(row * 4 + g) * hidden + u]; };
        const double i = gate(0), f = gate(1), g = gate(2), o = gate(3), tanh_c = std::tanh(cells[row * hidden + u]);
        const double before = turn > 0 ? cells[(n * steps + walk.at(turn - 1)) * hidden + u] : value_or(call, 6, n * hidden + u);
        const double dh = value_or(call, 0, row * hidden + u) + call.out(1)[n * hidden + u];
        const double dc = call.out(2)[n * hidden + u] + dh * o * (1 - tanh_c * tanh_c);
        const double d[4] = {dc * g * i * (1 - i), dc * before * f * (1 - f), dc * i * (1 - g * g), dh * tanh_c * o * (1 - o)};
        for (int64_t k = 0; k < 4; ++k) call.out(0)[(row * 4 + k) * hidden + u] = d[k];
        call.out(2)[n * hidden + u] = dc * f;
      }
      for (int64_t u = 0; u < hidden; ++u) call.out(1)[n * hidden + u] = carried(weight, call.out(0), row, u);
    }
  }
}

void gru_backward_ref(RefCall& call) {
  const RefArray &gates = call.in(2), &y = call.in(3), &weight = call.in(4);
  const int64_t batch = y.shape[0], steps = y.shape[1], hidden = y.shape[2];
  const Walk walk{steps, call.attrs<RecurrentBackwardAttrs>().reverse};
  for (int64_t n = 0; n < batch; ++n) {
    for (int64_t u = 0; u < hidden; ++u) call.out(2)[n * hidden + u] = value_or(call, 1, n * hidden + u);
    for (int64_t turn = steps - 1; turn >= 0; --turn) {
      const int64_t row = n * steps + walk.at(turn);
      std::vector<double> through(static_cast<size_t>(hidden));  // past the cell, by z
      for (int64_t u = 0; u < hidden; ++u) {
        const auto gate = [&](int64_t g) { return gates[(row * 4 + g) * hidden + u]; };
        const double r = gate(0), z = gate(1), candidate = gate(2), q = gate(3);
        const double before = turn > 0 ? y[(n * steps + walk.at(turn - 1)) * hidden + u] : value_or(call, 5, n * hidden + u);
        const double dh = value_or(call, 0, row * hidden + u) + call.out(2)[n * hidden + u];
        const double dn = dh * (1 - z) * (1 - candidate * candidate), dz = dh * (before - candidate) * z * (1 - z), dr = dn * q * r * (1 - r);
        const double input[3] = {dr, dz, dn}, of_hidden[3] = {dr, dz, dn * r};
        for (int64_t k = 0; k < 3; ++k) {
          call.out(0)[(row * 3 + k) * hidden + u] = input[k];
          call.out(1)[(row * 3 + k) * hidden + u] = of_hidden[k];
        }
        through[static_cast<size_t>(u)] = dh * z;
      }
      for (int64_t u = 0; u < hidden; ++u) call.out(2)[n * hidden + u] = through[static_cast<size_t>(u)] + carried(weight, call.out(1), row, u);
    }
  }
}

void rnn_backward_ref(RefCall& call) {
  const auto& attrs = call.attrs<RnnAttrs>();
  const RefArray &y = call.in(2), &weight = call.in(3);
  const int64_t batch = y.shape[0], steps = y.shape[1], hidden = y.shape[2];
  const Walk walk{steps, attrs.reverse};
  for (int64_t n = 0; n < batch; ++n) {
    for (int64_t u = 0; u < hidden; ++u) call.out(1)[n * hidden + u] = value_or(call, 1, n * hidden + u);
    for (int64_t turn = steps - 1; turn >= 0; --turn) {
      const int64_t row = n * steps + walk.at(turn);
      for (int64_t u = 0; u < hidden; ++u) {
        const double h = y[row * hidden + u], slope = attrs.nonlinearity == Nonlinearity::kTanh ? 1 - h * h : h > 0 ? 1 : 0;
        call.out(0)[row * hidden + u] = (value_or(call, 0, row * hidden + u) + call.out(1)[n * hidden + u]) * slope;
      }
      for (int64_t u = 0; u < hidden; ++u) call.out(1)[n * hidden + u] = carried(weight, call.out(0), row, u);
    }
  }
}

constexpr RefEntry kEntries[] = {{"lstm", lstm_ref}, {"lstm_backward", lstm_backward_ref}, {"gru", gru_ref}, {"gru_backward", gru_backward_ref}, {"rnn", rnn_ref}, {"rnn_backward", rnn_backward_ref}};

}  // namespace

std::span<const RefEntry> ref_recurrent() { return kEntries; }

}  // namespace galley
