#include "libcore/weights/weights_file.h"

#include <algorithm>
#include <array>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/weights/pth.h"

namespace galley {
namespace {

OfferedTensor offered(const PthTensor& tensor) { return {tensor.name, tensor.type->dtype, std::string(tensor.type->text), tensor.shape}; }

bool is_pytorch(const std::string& path) {
  const InputFile file(path);
  std::array<std::byte, 512> start{};
  const std::span<std::byte> read = std::span(start).first(static_cast<size_t>(std::clamp<int64_t>(file.size(), 0, 512)));
  file.read(0, read);
  return is_pth(read);
}

}  // namespace

WeightsFile::WeightsFile(const std::string& path) : path_(path) {
  if (is_pytorch(path)) {
    pth_ = std::make_unique<PthFile>(path);
    chosen_ = pth_->table().chosen;
    for (const PthTensor& tensor : pth_->table().tensors) tensors_.push_back(offered(tensor));
    for (const PthTensor& tensor : pth_->table().others) others_.push_back(offered(tensor));
  } else {
    safetensors_ = std::make_unique<SafetensorsFile>(path);
    for (const SafetensorsEntry& entry : safetensors_->entries()) tensors_.push_back({entry.name, entry.dtype, entry.dtype_text, entry.shape});
  }
}

WeightsFile::~WeightsFile() = default;
WeightsFile::WeightsFile(WeightsFile&&) noexcept = default;
WeightsFile& WeightsFile::operator=(WeightsFile&&) noexcept = default;

std::string WeightsFile::format() const {
  if (safetensors_) return "safetensors";
  return pth_->table().form == PthForm::kZip ? "PyTorch zip" : "PyTorch before 1.6";
}

const Metadata& WeightsFile::metadata() const { return safetensors_ ? safetensors_->metadata() : no_metadata_; }

Tensor WeightsFile::read(size_t index) const {
  return safetensors_ ? safetensors_->read(safetensors_->entries().at(index)) : pth_->read(pth_->table().tensors.at(index));
}

FileCheck WeightsFile::verify() const {
  FileCheck check;
  if (pth_) {
    check.checked_bytes = pth_->verify();
    check.value_bytes = pth_->value_bytes();
    if (!check.complete()) check.reason = pth_->table().form == PthForm::kLegacy ? "the format of PyTorch before 1.6 has no checksums" : "it was saved without checksums";
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
