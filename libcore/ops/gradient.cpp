#include "libcore/ops/gradient.h"

namespace galley {

void GradientBuilder::set(size_t i, Value gradient) {
  if (!wants(i)) return;
  GALLEY_ASSERT(gradient && gradient.shape() == in(i).shape(), "gradient of input ", i, " of ", node_.op->name, " has shape ",
                gradient ? gradient.shape() : Shape(), ", but the input has shape ", in(i).shape());
  result_[i] = gradient;
}

}  // namespace galley
