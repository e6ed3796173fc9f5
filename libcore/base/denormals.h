#pragma once
// Subnormal ("denormal") floats: numbers below 1.2e-38 (f32) and 2.2e-308 (f64). Processors compute with them 10 to 100 times slower than
// with others, in a diverging training for whole arrays (GPT-2 with weights N(0, 1): 10.0 s per step, 2.0 s with flushing), and no result
// needs them.

namespace galley {

/// While it lives, the calling thread and its compute threads (base/parallel.h, oneDNN) take subnormal floats as zero, as operands and as
/// results. The calling thread's state is restored at the end; its compute threads keep theirs.
class FlushDenormals {
 public:
  FlushDenormals();
  ~FlushDenormals();
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  unsigned long long saved_;
};

/// Does the calling thread take subnormal floats as zero? False on processors where FlushDenormals does nothing.
bool flushes_denormals();
/// From now on the calling thread does.
void start_flushing_denormals();
/// Is this a processor on which FlushDenormals works: x86-64 or AArch64?
bool can_flush_denormals();

}  // namespace galley
