// Names that other tools use, and the corresponding keys of a recipe.

#include <array>
#include <utility>

#include "libcore/recipe/schema.h"

namespace galley {
namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 86> kForeign{{
    {"epochs", "train.duration"},
    {"epoch", "train.duration"},
    {"num_epochs", "train.duration"},
    {"max_epochs", "train.duration"},
    {"n_epochs", "train.duration"},
    {"num_train_epochs", "train.duration"},
    {"max_steps", "train.duration"},
    {"num_steps", "train.duration"},
    {"steps", "train.duration"},
    {"iterations", "train.duration"},
    {"max_iters", "train.duration"},
    {"max_duration", "train.duration"},
    {"time_budget", "train.duration"},
    {"batch_size", "train.batch.global"},
    {"train_batch_size", "train.batch.global"},
    {"global_batch_size", "train.batch.global"},
    {"micro_batch_size", "train.batch.micro"},
    {"per_device_train_batch_size", "train.batch.micro"},
    {"gradient_accumulation_steps", "train.batch.micro"},
    {"accumulate_grad_batches", "train.batch.micro"},
    {"eval_batch_size", "data.val.batch"},
    {"per_device_eval_batch_size", "data.val.batch"},
    {"learning_rate", "train.optimizer.lr"},
    {"base_lr", "train.optimizer.lr"},
    {"lr", "train.optimizer.lr"},
    {"lr0", "train.optimizer.lr"},
    {"weight_decay", "train.optimizer.weight_decay"},
    {"wd", "train.optimizer.weight_decay"},
    {"momentum", "train.optimizer.momentum"},
    {"optim", "train.optimizer"},
    {"optimiser", "train.optimizer"},
    {"param_groups", "train.optimizer.groups"},
    {"paramwise_cfg", "train.optimizer.groups"},
    {"scheduler", "train.schedule"},
    {"lr_scheduler", "train.schedule"},
    {"lr_schedule", "train.schedule"},
    {"warmup_steps", "train.schedule"},
    {"warmup_epochs", "train.schedule"},
    {"lr_warmup_epochs", "train.schedule"},
    {"fp16", "precision"},
    {"bf16", "precision"},
    {"fp32", "precision"},
    {"amp", "precision"},
    {"mixed_precision", "precision"},
    {"dtype", "precision"},
    {"clip_grad", "train.clip"},
    {"grad_clip", "train.clip"},
    {"gradient_clip_val", "train.clip"},
    {"max_grad_norm", "train.clip"},
    {"clip_grad_norm", "train.clip"},
    {"model_ema", "train.ema"},
    {"ema_decay", "train.ema.decay"},
    {"activation_checkpointing", "train.recompute"},
    {"gradient_checkpointing", "train.recompute"},
    {"early_stopping", "train.early_stop"},
    {"patience", "train.early_stop.patience"},
    {"val_interval", "train.validate.every"},
    {"eval_every", "train.validate.every"},
    {"num_workers", "data.train.workers"},
    {"workers", "data.train.workers"},
    {"dataset", "data.train.source"},
    {"data_dir", "data.root"},
    {"data_path", "data.root"},
    {"transform", "data.train.pipeline"},
    {"transforms", "data.train.pipeline"},
    {"drop_last", "data.train.last_batch"},
    {"mixup", "data.train.batch_transforms"},
    {"cutmix", "data.train.batch_transforms"},
    {"criterion", "loss"},
    {"label_smoothing", "loss.label_smoothing"},
    {"arch", "model.type"},
    {"num_classes", "model.num_classes"},
    {"pretrained", "weights.load"},
    {"resume_from", "weights.load"},
    {"log_interval", "log.every"},
    {"print_freq", "log.every"},
    {"save_every", "checkpoint.every"},
    {"zero_stage", "sharding.strategy"},
    {"zero_optimization", "sharding"},
    {"fsdp", "sharding"},
    {"ddp", "sharding"},
    {"parallelism", "sharding"},
    {"bucket_cap_mb", "sharding.bucket"},
    {"auto_wrap_policy", "sharding.wrap"},
    {"cpu_offload", "sharding.offload"},
    {"comm_hook", "sharding.hook"},
}};

}  // namespace

std::string_view foreign_key(std::string_view name) {
  for (const auto& [foreign, key] : kForeign) {
    if (foreign == name) return key;
  }
  return "";
}

std::vector<std::string> foreign_names() {
  std::vector<std::string> names;
  for (const auto& [foreign, key] : kForeign) names.emplace_back(foreign);
  return names;
}

}  // namespace galley
