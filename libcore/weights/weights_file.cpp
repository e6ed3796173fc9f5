#include "libcore/weights/weights_file.h"

#include <algorithm>
#include <array>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/onnx/onnx.h"
#include "libcore/weights/checkpoint.h"
#include "libcore/weights/pth.h"

namespace galley {
namespace {

OfferedTensor offered(const PthTensor& tensor) { return {tensor.name, tensor.type->dtype, std::string(tensor.type->text), tensor.shape}; }

std::string upper(std::string_view text) {
  std::string result(text);
  for (char& letter : result) letter = static_cast<char>(letter >= 'a' && letter <= 'z' ? letter - 'a' + 'A' : letter);
  return result;
}

/// Uses the type names of safetensors files, so that equal types have equal names in comparisons.
OfferedTensor offered(const OnnxTensor& tensor) {
  return {tensor.name, tensor.dtype, upper(tensor.dtype ? dtype_name(*tensor.dtype) : tensor.dtype_text), tensor.shape};
}

/// The groups of a checkpoint that are weights.
constexpr std::string_view kWeightGroups[] = {"parameters", "buffers"};

OfferedTensor offered(const ManifestTensor& tensor) { return {tensor.name, tensor.dtype, upper(dtype_name(tensor.dtype)), tensor.shape}; }

enum class Format { kSafetensors, kPytorch, kOnnx, kCheckpoint };

Format format_of(const std::string& path) {
  const InputFile file(path);
  std::array<std::byte, 512> start{};
  const std::span<std::byte> read = std::span(start).first(static_cast<size_t>(std::clamp<int64_t>(file.size(), 0, 512)));
  file.read(0, read);
  if (is_pth(read)) return Format::kPytorch;
  if (is_onnx(read)) return Format::kOnnx;
  if (std::string_view(reinterpret_cast<const char*>(read.data()), read.size()).starts_with(kManifestStart)) return Format::kCheckpoint;
  for (const char* suffix : {".pth", ".pt", ".bin", ".ckpt", ".onnx"}) {
    const bool safetensors = file.size() >= 9 && start[8] == std::byte{'{'};
    if (safetensors || !path.ends_with(suffix)) continue;
    throw Error(ErrorCode::kInput, cat(path, ": the file (", file.size(), file.size() == 1 ? " byte" : " bytes", ") does not begin like ",
                                       path.ends_with(".onnx") ? "an ONNX model" : "a file of PyTorch", ": it is damaged or another file"))
        .suggest("fetch or save it again");
  }
  return Format::kSafetensors;
}

}  // namespace

WeightsFile::WeightsFile(const std::string& path) : path_(path) {
  const Format format = format_of(path);
  if (format == Format::kOnnx) {
    onnx_ = std::make_unique<OnnxFile>(path);
    for (const OnnxTensor& tensor : onnx_->model().initializers) tensors_.push_back(offered(tensor));
  } else if (format == Format::kPytorch) {
    pth_ = std::make_unique<PthFile>(path);
    chosen_ = pth_->table().chosen;
    for (const PthTensor& tensor : pth_->table().tensors) tensors_.push_back(offered(tensor));
    for (const PthTensor& tensor : pth_->table().others) others_.push_back(offered(tensor));
  } else if (format == Format::kCheckpoint) {
    checkpoint_ = std::make_unique<Checkpoint>(parent_folder(path));
    metadata_ = checkpoint_->metadata();
    for (const std::string& group : checkpoint_->groups()) {
      const bool weights = std::find(std::begin(kWeightGroups), std::end(kWeightGroups), group) != std::end(kWeightGroups);
      for (const ManifestTensor& tensor : checkpoint_->tensors(group)) {
        (weights ? tensors_ : others_).push_back(offered(tensor));
        if (weights) stored_.push_back(&tensor);
      }
    }
  } else {
    safetensors_ = std::make_unique<SafetensorsFile>(path);
    if (safetensors_->metadata().contains(std::string(kPartKey))) {
      throw Error(ErrorCode::kInput, cat(path, " is one part of a checkpoint that several ranks wrote"))
          .suggest(cat("use the folder ", parent_folder(path), ", or make one file of it: galley-weights convert ", parent_folder(path),
                       " -o weights.safetensors"));
    }
    for (const SafetensorsEntry& entry : safetensors_->entries())
      tensors_.push_back({entry.name, entry.dtype, entry.dtype_text, entry.shape});
  }
}

WeightsFile::~WeightsFile() = default;
WeightsFile::WeightsFile(WeightsFile&&) noexcept = default;
WeightsFile& WeightsFile::operator=(WeightsFile&&) noexcept = default;

std::string WeightsFile::format() const {
  if (safetensors_) return "safetensors";
  if (onnx_) return "ONNX";
  if (checkpoint_) return "checkpoint";
  return pth_->table().form == PthForm::kZip ? "PyTorch zip" : "PyTorch before 1.6";
}

const Metadata& WeightsFile::metadata() const {
  return safetensors_ ? safetensors_->metadata() : onnx_ ? onnx_->model().metadata : metadata_;
}

std::string WeightsFile::misfit_hint() const {
  if (!onnx_) return "";
  const std::vector<OnnxNode>& nodes = onnx_->model().nodes;
  const auto has = [&](std::string_view op) {
    return std::any_of(nodes.begin(), nodes.end(), [&](const OnnxNode& node) { return node.op_type == op; });
  };
  const std::string fix = cat("use it as the model: model: {type: onnx, path: ", path_, "}");
  if (has("DequantizeLinear")) return cat(path_, " contains quantized weights, which float models cannot load; ", fix);
  const bool renamed =
      std::any_of(tensors_.begin(), tensors_.end(), [](const OfferedTensor& tensor) { return tensor.name.starts_with("onnx::"); });
  if (!renamed && (has("BatchNormalization") || !has("Conv"))) return "";
  return cat(path_,
             " was exported with batch norms folded into the preceding weights, under names chosen by the exporter: export it with "
             "do_constant_folding=False and "
             "training=TrainingMode.PRESERVE on the model in eval mode, or ",
             fix);
}

Tensor WeightsFile::read(size_t index) const {
  if (onnx_) return onnx_->read(onnx_->model().initializers.at(index));
  if (checkpoint_) return checkpoint_->read(*stored_.at(index));
  return safetensors_ ? safetensors_->read(safetensors_->entries().at(index)) : pth_->read(pth_->table().tensors.at(index));
}

void WeightsFile::release() const {
  if (safetensors_) safetensors_->release();
  if (pth_) pth_->release();
  if (onnx_) onnx_->release();
  if (checkpoint_) checkpoint_->release();
}

int64_t WeightsFile::value_bytes() const {
  int64_t bytes = 0;
  for (const OfferedTensor& tensor : tensors_) bytes += tensor.dtype ? tensor.shape.elements() * dtype_size(*tensor.dtype) : 0;
  return bytes;
}

FileCheck WeightsFile::verify() const {
  FileCheck check;
  if (checkpoint_) {
    checkpoint_->verify();
    check.checked_bytes = check.value_bytes = value_bytes();
    return check;
  }
  if (pth_) {
    check.checked_bytes = pth_->verify();
    check.value_bytes = pth_->value_bytes();
    if (!check.complete())
      check.reason =
          pth_->table().form == PthForm::kLegacy ? "the format of PyTorch before 1.6 has no checksums" : "it was saved without checksums";
    return check;
  }
  if (onnx_) {
    for (const OnnxTensor& tensor : onnx_->model().initializers) check.value_bytes += tensor.end - tensor.begin;
    onnx_->verify();
    if (onnx_->has_digest()) {
      check.checked_bytes = check.value_bytes;
    } else {
      check.reason = "ONNX files of other programs have no checksums";
    }
    return check;
  }
  for (const SafetensorsEntry& entry : safetensors_->entries()) check.value_bytes += entry.end - entry.begin;
  safetensors_->verify();
  if (safetensors_->has_digests()) {
    check.checked_bytes = check.value_bytes;
  } else {
    check.reason = "safetensors files of other programs have no checksums";
  }
  return check;
}

}  // namespace galley
