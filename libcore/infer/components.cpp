#include "libcore/infer/components.h"

#include "libcore/data/batch_transform.h"
#include "libcore/data/source.h"
#include "libcore/data/tokenizers.h"
#include "libcore/data/transform.h"
#include "libcore/nn/loss.h"
#include "libcore/nn/zoo.h"
#include "libcore/onnx/import/model.h"
#include "libcore/optim/optimizer.h"
#include "libcore/optim/schedule.h"
#include "libcore/tasks/task.h"

namespace galley {

const ComponentRegistry& recipe_components() {
  add_onnx_models();
  static const ComponentRegistry registry{.models = models(),
                                          .sources = data_sources(),
                                          .transforms = data_transforms(),
                                          .batch_transforms = data_batch_transforms(),
                                          .optimizers = optimizers(),
                                          .schedules = schedules(),
                                          .losses = losses(),
                                          .tokenizers = data_tokenizers(),
                                          .tasks = tasks()};
  return registry;
}

}  // namespace galley
