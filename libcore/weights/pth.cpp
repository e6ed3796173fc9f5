#include "libcore/weights/pth.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <unordered_set>

#include "libcore/base/error.h"
#include "libcore/base/parallel.h"
#include "libcore/weights/crc32.h"

namespace galley {
namespace {

using Kind = PickleValue::Kind;

constexpr std::array<std::string_view, 9> kWeightKeys{"state_dict", "model_state_dict", "model",  "module",   "net",
                                                      "network",    "weights",          "params", "generator"};
constexpr int kDepthLimit = 32;
constexpr int64_t kVisitLimit = 3'000'000;
constexpr int64_t kTensorLimit = 100'000;
constexpr int64_t kNameLimit = 4096;
constexpr double kSurplusLimit = 64;        // limit for tensors that share storages: total size as a multiple of the file's values
constexpr size_t kChecksumBytes = 1 << 20;  // process a megabyte while it is in the cache
constexpr int64_t kWorthThreads = 1 << 22;  // bytes of values from which threads are used
// Before 1.6, torch.save wrote first the number 0x1950a86a20f9469cfc6c as LONG1, then the version 1001.
constexpr std::string_view kLegacyMagic("\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 10);
constexpr int64_t kLegacyVersion = 1001;

std::span<const std::byte> part(std::span<const std::byte> file, int64_t begin, int64_t end) {
  return file.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
}

/// Collects the tensors below a value with dotted names.
class TensorCollector {
 public:
  explicit TensorCollector(const Pickle& pickle) : pickle_(pickle) {}

  void collect(const PickleValue& value, const std::string& name, int depth, std::vector<PthTensor>& found) {
    GALLEY_CHECK_INPUT(++visits_ <= kVisitLimit, "the file's dictionaries contain each other too often");
    if (value.kind == Kind::kTensor) {
      GALLEY_CHECK_INPUT(static_cast<int64_t>(found.size()) < kTensorLimit, "the file has more than ", kTensorLimit, " tensors");
      const PickleTensor& tensor = pickle_.tensors[static_cast<size_t>(value.number)];
      found.push_back({name.empty() ? "tensor" : name, tensor.type, tensor.shape, tensor.strides, tensor.storage, tensor.offset});
      return;
    }
    const bool map = value.kind == Kind::kDict;
    if (!map && value.kind != Kind::kList && value.kind != Kind::kTuple) return;
    const std::vector<PickleValue>& items = pickle_.items(value);
    for (size_t i = 0; i < items.size(); i += map ? 2 : 1) {
      const PickleValue& item = items[map ? i + 1 : i];
      if (item.kind != Kind::kTensor && item.kind != Kind::kDict && item.kind != Kind::kList && item.kind != Kind::kTuple) continue;
      const std::string key = map ? key_text(items[i]) : std::to_string(i);
      GALLEY_CHECK_INPUT(depth < kDepthLimit, "the file nests its dictionaries more than ", kDepthLimit, " levels deep, at '", name, "'");
      GALLEY_CHECK_INPUT(static_cast<int64_t>(name.size() + key.size()) < kNameLimit, "the file has a name longer than ", kNameLimit,
                         " bytes");
      collect(item, name.empty() ? key : name + "." + key, depth + 1, found);
    }
  }

  std::string key_text(const PickleValue& key) const {
    if (key.kind == Kind::kText) {
      const std::string_view text = pickle_.text(key);
      for (const char letter : text.substr(0, static_cast<size_t>(kNameLimit))) {
        GALLEY_CHECK_INPUT(static_cast<unsigned char>(letter) >= 0x20 && letter != 0x7f, "the file has a name with a control character");
      }
      return std::string(text.substr(0, static_cast<size_t>(kNameLimit)));
    }
    return key.kind == Kind::kInt ? std::to_string(key.number) : "(key)";
  }

 private:
  const Pickle& pickle_;
  int64_t visits_ = 0;
};

/// Selects the weights by the rule described in pth.h and names all tensors.
void name_tensors(const Pickle& pickle, PthTable& table) {
  TensorCollector collector(pickle);
  const PickleValue& root = pickle.root;
  std::optional<size_t> chosen;
  if (root.kind == Kind::kDict) {
    const std::vector<PickleValue>& items = pickle.items(root);
    bool has_own = false;
    for (size_t i = 1; i < items.size(); i += 2) has_own |= items[i].kind == Kind::kTensor;
    for (const std::string_view key : kWeightKeys) {
      for (size_t i = 0; !has_own && !chosen && i < items.size(); i += 2) {
        if (items[i].kind != Kind::kText || pickle.text(items[i]) != key || items[i + 1].kind != Kind::kDict) continue;
        std::vector<PthTensor> found;
        collector.collect(items[i + 1], "", 1, found);
        if (found.empty()) continue;
        chosen = i;
        table.chosen = std::string(key);
        table.tensors = std::move(found);
      }
    }
    if (chosen) {
      for (size_t i = 0; i < items.size(); i += 2) {
        if (i != *chosen) collector.collect(items[i + 1], collector.key_text(items[i]), 1, table.others);
      }
    }
  }
  if (!chosen) collector.collect(root, "", 0, table.tensors);
  GALLEY_CHECK_INPUT(!table.tensors.empty(), "the file contains no tensors");
  std::unordered_set<std::string_view> names;
  for (const PthTensor& tensor : table.tensors)
    GALLEY_CHECK_INPUT(names.insert(tensor.name).second, "the file has two tensors named '", tensor.name, "'");
}

/// Tensors may share values, but a small file must not expand to a huge amount of data.
void check_total(const PthTable& table) {
  double held = 0, wanted = 0;  // double, because the sums may exceed 63 bits
  for (const PthStorage& storage : table.storages) held += static_cast<double>(storage.end - storage.begin);
  for (const std::vector<PthTensor>* list : {&table.tensors, &table.others}) {
    for (const PthTensor& tensor : *list) wanted += static_cast<double>(tensor.shape.elements() * tensor.type->bytes);
  }
  GALLEY_CHECK_INPUT(wanted <= kSurplusLimit * held, "the file's tensors share values and would be more than ", kSurplusLimit,
                     " times as large as the file");
}

PthTable parse_archive(std::span<const std::byte> file) {
  PthTable table;
  table.entries = parse_zip(file);
  std::map<std::string_view, const ZipEntry*> by_name;
  const size_t slash = table.entries.empty() ? std::string::npos : table.entries.front().name.find('/');
  GALLEY_CHECK_INPUT(slash != std::string::npos, "the archive is not a PyTorch file: it has no folder with a data.pkl");
  const std::string folder = table.entries.front().name.substr(0, slash + 1);
  for (const ZipEntry& entry : table.entries) {
    GALLEY_CHECK_INPUT(entry.name.starts_with(folder), "the archive is not a PyTorch file: it has entries outside the folder ", folder);
    by_name[std::string_view(entry.name).substr(folder.size())] = &entry;
  }
  const auto contents = [&](const ZipEntry& entry) {
    const std::span<const std::byte> bytes = part(file, entry.begin, entry.end);
    GALLEY_CHECK_INPUT(entry.crc32 == 0 || crc32_of(bytes) == entry.crc32, "the entry '", entry.name, "' does not match its checksum");
    return bytes;
  };
  const auto text_of = [&](std::string_view name) -> std::string_view {
    const auto found = by_name.find(name);
    if (found == by_name.end()) return "";
    const auto bytes = contents(*found->second);
    return {reinterpret_cast<const char*>(bytes.data()), std::min<size_t>(bytes.size(), 64)};
  };
  if (by_name.count("constants.pkl") != 0 ||
      std::any_of(by_name.begin(), by_name.end(), [](const auto& item) { return item.first.starts_with("code/"); })) {
    throw Error(ErrorCode::kInput, "the archive is a TorchScript program, not a weights file")
        .suggest("save only the weights: torch.save(model.state_dict(), FILE)");
  }
  const auto pickled = by_name.find("data.pkl");
  GALLEY_CHECK_INPUT(pickled != by_name.end(), "the archive is not a PyTorch file: it has no data.pkl");
  const std::string_view order = text_of("byteorder");
  GALLEY_CHECK_INPUT(order.empty() || order == "little", "the file's values have the byte order '", order,
                     "', but only little-endian files are supported");

  // Offsets in messages count from the start of data.pkl, as in pickletools.
  const std::span<const std::byte> bytes = contents(*pickled->second);
  const Pickle pickle = parse_pickle(bytes);
  GALLEY_CHECK_INPUT(pickle.end == static_cast<int64_t>(bytes.size()), "data.pkl has ", static_cast<int64_t>(bytes.size()) - pickle.end,
                     " bytes after its end");
  for (const PickleStorage& storage : pickle.storages) {
    const auto entry = by_name.find("data/" + storage.key);
    GALLEY_CHECK_INPUT(entry != by_name.end(), "the archive has no entry data/", storage.key, ", which a tensor needs");
    const int64_t stored = entry->second->end - entry->second->begin;
    GALLEY_CHECK_INPUT(stored == storage.bytes, "the entry '", entry->second->name, "' has ", stored, " bytes, but its tensors need ",
                       storage.bytes);
    table.storages.push_back({storage.key, entry->second->begin, entry->second->end});
  }
  name_tensors(pickle, table);
  return table;
}

/// Five pickles (magic number, version, machine, object, keys of the storages), then each storage, preceded by its number of elements in 8
/// bytes.
PthTable parse_legacy(std::span<const std::byte> file) {
  PthTable table;
  table.form = PthForm::kLegacy;
  const Pickle magic = parse_pickle(file);
  GALLEY_CHECK_INPUT(magic.root.kind == Kind::kLong && magic.text(magic.root) == kLegacyMagic,
                     "the file does not begin with PyTorch's magic number: it is another kind of pickle");
  const Pickle version = parse_pickle(file, magic.end);
  GALLEY_CHECK_INPUT(version.root.kind == Kind::kInt && version.root.number == kLegacyVersion, "the file's version is not ",
                     kLegacyVersion);
  const Pickle machine = parse_pickle(file, version.end);
  GALLEY_CHECK_INPUT(machine.root.kind == Kind::kDict, "the file does not state the byte order of the machine that wrote it");
  const std::vector<PickleValue>& facts = machine.items(machine.root);
  for (size_t i = 0; i < facts.size(); i += 2) {
    const bool order = facts[i].kind == Kind::kText && machine.text(facts[i]) == "little_endian";
    GALLEY_CHECK_INPUT(!order || (facts[i + 1].kind == Kind::kBool && facts[i + 1].number == 1),
                       "the file was written on a big-endian machine, but only little-endian files are supported");
  }
  const Pickle pickle = parse_pickle(file, machine.end);
  const Pickle keys = parse_pickle(file, pickle.end);
  GALLEY_CHECK_INPUT(keys.root.kind == Kind::kList, "the file has no list of its storages");
  std::map<std::string_view, size_t> index;
  for (size_t i = 0; i < pickle.storages.size(); ++i) index[pickle.storages[i].key] = i;
  table.storages.resize(pickle.storages.size());
  int64_t at = keys.end;
  const auto size = static_cast<int64_t>(file.size());
  for (const PickleValue& key : keys.items(keys.root)) {
    const auto found = key.kind == Kind::kText ? index.find(keys.text(key)) : index.end();
    GALLEY_CHECK_INPUT(found != index.end(), "the file lists a storage that no tensor uses, or one twice");
    const PickleStorage& storage = pickle.storages[found->second];
    GALLEY_CHECK_INPUT(size - at >= 8, "the file ends before storage ", storage.key, ": it is truncated");
    uint64_t elements = 0;
    std::memcpy(&elements, file.data() + at, 8);
    at += 8;
    GALLEY_CHECK_INPUT(elements == static_cast<uint64_t>(storage.bytes / storage.element_bytes), "storage ", storage.key, " has ", elements,
                       " elements, but its tensors need ", storage.bytes / storage.element_bytes);
    GALLEY_CHECK_INPUT(storage.bytes <= size - at, "the file ends inside storage ", storage.key, ": it is truncated");
    table.storages[found->second] = {storage.key, at, at + storage.bytes};
    at += storage.bytes;
    index.erase(found);
  }
  GALLEY_CHECK_INPUT(index.empty(), "the file has no values for storage ", index.begin()->first);
  GALLEY_CHECK_INPUT(at == size, "the file has ", size - at, " bytes after its last storage");
  name_tensors(pickle, table);
  return table;
}

bool is_tar(std::span<const std::byte> file) { return file.size() > 262 && std::memcmp(file.data() + 257, "ustar", 5) == 0; }

void copy_strided(const PthTensor& tensor, const std::byte* from, std::byte* to) {
  const auto size = static_cast<size_t>(tensor.type->bytes);
  const int rank = tensor.shape.rank();
  const int64_t inner = rank > 0 ? tensor.shape[rank - 1] : 1, step = rank > 0 ? tensor.strides[rank - 1] : 1;
  std::array<int64_t, Shape::kMaxRank> index{};
  for (int64_t rows = inner == 0 ? 0 : tensor.shape.elements() / inner; rows > 0; --rows) {
    int64_t place = 0;
    for (int axis = 0; axis + 1 < rank; ++axis) place += index[static_cast<size_t>(axis)] * tensor.strides[axis];
    const std::byte* row = from + place * tensor.type->bytes;
    for (int64_t i = 0; i < inner; ++i, to += size) std::memcpy(to, row + i * step * tensor.type->bytes, size);
    for (int axis = rank - 2; axis >= 0 && ++index[static_cast<size_t>(axis)] == tensor.shape[axis]; --axis)
      index[static_cast<size_t>(axis)] = 0;
  }
}

bool is_contiguous(const PthTensor& tensor) {
  int64_t stride = 1;
  for (int axis = tensor.shape.rank() - 1; axis >= 0; --axis) {
    if (tensor.shape[axis] != 1 && tensor.strides[axis] != stride) return false;
    stride *= tensor.shape[axis];
  }
  return true;
}

}  // namespace

bool is_pth(std::span<const std::byte> file) {
  return is_zip(file) || is_tar(file) ||
         (file.size() > 2 && file[0] == std::byte{0x80} && file[1] >= std::byte{2} && file[1] <= std::byte{5} && file[2] != std::byte{0});
}

PthTable parse_pth(std::span<const std::byte> file) {
  if (is_tar(file)) {
    throw Error(ErrorCode::kInput, "the file has PyTorch's tar format of 2016, which is not supported")
        .suggest("load it with a PyTorch version that reads it and save it again");
  }
  PthTable table = is_zip(file) ? parse_archive(file) : parse_legacy(file);
  check_total(table);
  return table;
}

PthFile::PthFile(const std::string& path) : path_(path), file_(MappedFile::open(path)) {
  try {
    table_ = parse_pth(file_->bytes());
  } catch (const Error& error) {
    const std::string fix = error.suggestion().empty() ? "fetch or save it again" : error.suggestion();
    throw Error(error.code(), cat(path, ": ", error.message())).suggest(fix);
  }
}

Tensor PthFile::read(const PthTensor& tensor) const {
  GALLEY_CHECK_INPUT(tensor.type->dtype.has_value(), path_, ": tensor '", tensor.name, "' has the dtype ", tensor.type->text,
                     ", which Galley does not support");
  const DType dtype = *tensor.type->dtype;
  const std::byte* data = file_->bytes().data() + table_.storages[tensor.storage].begin + tensor.offset * tensor.type->bytes;
  const int64_t bytes = tensor.shape.elements() * tensor.type->bytes;
  if (bytes > 0 && is_contiguous(tensor) && reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(tensor.type->bytes) == 0) {
    return Tensor(dtype, tensor.shape, {}, Storage::borrow(data, bytes, file_));
  }
  Tensor copy(dtype, tensor.shape);
  if (bytes > 0 && is_contiguous(tensor)) {
    std::memcpy(copy.data(), data, static_cast<size_t>(bytes));
  } else if (bytes > 0) {
    copy_strided(tensor, data, static_cast<std::byte*>(copy.data()));
  }
  return copy;
}

int64_t PthFile::value_bytes() const {
  int64_t bytes = 0;
  for (const PthStorage& storage : table_.storages) bytes += storage.end - storage.begin;
  return bytes;
}

int64_t PthFile::verify() const {
  if (table_.form == PthForm::kLegacy) return 0;
  const InputFile file(path_);
  const std::vector<ZipEntry>& entries = table_.entries;
  std::vector<uint8_t> matches(entries.size(), 0);
  const auto count = static_cast<int64_t>(entries.size());
  const int64_t grain = value_bytes() < kWorthThreads ? count : 1;
  parallel_for(count, grain, [&](int64_t first, int64_t last) {
    std::vector<std::byte> buffer(kChecksumBytes);
    for (auto i = static_cast<size_t>(first); i < static_cast<size_t>(last); ++i) {
      uint32_t found = 0;
      for (int64_t at = entries[i].begin; at < entries[i].end; at += static_cast<int64_t>(kChecksumBytes)) {
        const std::span<std::byte> bytes =
            std::span(buffer).first(static_cast<size_t>(std::min(static_cast<int64_t>(kChecksumBytes), entries[i].end - at)));
        file.read(at, bytes);
        found = crc32_of(bytes, found);
      }
      matches[i] = found == entries[i].crc32;
    }
  });
  std::map<int64_t, size_t> storage_at;
  for (size_t i = 0; i < table_.storages.size(); ++i) storage_at[table_.storages[i].begin] = i;
  int64_t checked = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    const auto storage = storage_at.find(entries[i].begin);
    if (matches[i]) checked += storage == storage_at.end() ? 0 : entries[i].end - entries[i].begin;
    // A checksum of 0 that does not match was omitted by the writer (torch.serialization.set_crc32_options).
    if (matches[i] || entries[i].crc32 == 0) continue;
    std::string names;
    for (const PthTensor& tensor : table_.tensors) {
      if (storage != storage_at.end() && tensor.storage == storage->second) names += (names.empty() ? "" : ", ") + tensor.name;
    }
    throw Error(ErrorCode::kInput, cat(path_, ": the entry '", entries[i].name, "'", names.empty() ? "" : cat(" (", names, ")"),
                                       " does not match its checksum"))
        .suggest("the file is damaged: fetch or save it again, or use another copy");
  }
  return checked;
}

}  // namespace galley
