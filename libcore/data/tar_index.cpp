#include "libcore/data/tar_index.h"

#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <memory>
#include <unordered_set>

#include "libcore/base/in_file.h"

namespace galley {
namespace {

constexpr int64_t kBlock = 512;
constexpr size_t kMaxName = 4096;

struct CloseReader {
  void operator()(archive* reader) const { archive_read_free(reader); }
};

/// Checks a member's name and strips leading "./". Names are only used as keys, but a name that leaves its folder suggests an attack.
std::string safe_name(archive_entry* entry, const std::string& path) {
  const char* raw = archive_entry_pathname_utf8(entry);
  if (raw == nullptr) raw = archive_entry_pathname(entry);
  GALLEY_CHECK_FILE(raw != nullptr && *raw != '\0', path, "a member has no readable name");
  std::string name = raw;
  while (name.starts_with("./")) name.erase(0, 2);
  bool safe = !name.starts_with('/') && name.size() <= kMaxName;
  for (const char c : name) safe = safe && static_cast<unsigned char>(c) >= 0x20 && c != 0x7f;
  GALLEY_CHECK_FILE(safe, path, "unsafe member name '", name.substr(0, 80), "' (absolute, too long, or with control characters)");
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('/', begin), name.size());
    GALLEY_CHECK_FILE(name.compare(begin, end - begin, "..") != 0, path, "unsafe member name '", name, "' (it contains '..')");
    begin = end + 1;
  }
  return name;
}

}  // namespace

std::vector<TarMember> index_tar(std::span<const std::byte> bytes, const std::string& path) {
  const std::unique_ptr<archive, CloseReader> reader(archive_read_new());
  GALLEY_ASSERT(reader != nullptr);
  archive_read_support_format_tar(reader.get());
  const auto reason = [&] {
    const char* text = archive_error_string(reader.get());
    return std::string(text == nullptr ? "damaged" : text);
  };
  GALLEY_CHECK_INPUT(archive_read_open_memory(reader.get(), bytes.data(), bytes.size()) == ARCHIVE_OK, path, ": ", reason());

  std::vector<TarMember> members;
  std::unordered_set<std::string> seen;
  const auto size = static_cast<int64_t>(bytes.size());
  int64_t end = 0;  // end of the last member
  for (;;) {
    archive_entry* entry = nullptr;
    const int status = archive_read_next_header(reader.get(), &entry);
    if (status == ARCHIVE_EOF) break;
    // libarchive warns only about names in unknown character sets. safe_name checks whether the name is readable.
    GALLEY_CHECK_FILE(status == ARCHIVE_OK || status == ARCHIVE_WARN, path, "damaged tar archive after ", members.size(),
                      " files: ", reason());
    std::string name = safe_name(entry, path);
    const auto type = archive_entry_filetype(entry);
    end = std::max(end, archive_read_header_position(reader.get()) + kBlock);
    if (type == AE_IFDIR) continue;
    GALLEY_CHECK_FILE(type == AE_IFREG && archive_entry_hardlink(entry) == nullptr, path, "'", name,
                      "' is a link or a device; only regular files are read");
    GALLEY_CHECK_FILE(archive_entry_sparse_count(entry) == 0, path, "'", name,
                      "' is stored as a sparse file; create the archive without --sparse");
    GALLEY_CHECK_FILE(seen.insert(name).second, path, "the member '", name, "' occurs twice");
    TarMember member{.name = std::move(name), .size = archive_entry_size(entry)};
    GALLEY_CHECK_FILE(member.size >= 0 && member.size <= size, path, "'", member.name, "' has ", member.size,
                      " bytes according to its header, but the archive has only ", size);
    if (member.size > 0) {
      // When libarchive reads from memory, it returns pointers into that memory, so the distance gives the offset.
      const void* data = nullptr;
      size_t available = 0;
      la_int64_t offset = 0;
      GALLEY_CHECK_INPUT(archive_read_data_block(reader.get(), &data, &available, &offset) == ARCHIVE_OK, path, ": '", member.name,
                         "': ", reason());
      const auto* begin = static_cast<const std::byte*>(data);
      GALLEY_CHECK_FILE(begin >= bytes.data() && begin < bytes.data() + size && offset == 0, path, "'", member.name,
                        "' is not stored contiguously");
      member.offset = begin - bytes.data();
      GALLEY_CHECK_FILE(static_cast<int64_t>(available) >= member.size && member.size <= size - member.offset, path, "'", member.name,
                        "' is truncated: ", member.size, " bytes at ", member.offset, ", but the archive has ", size);
      end = (member.offset + member.size + kBlock - 1) / kBlock * kBlock;
    }
    members.push_back(std::move(member));
  }
  GALLEY_CHECK_FILE(size - end >= kBlock, path, "no end mark after ", members.size(), " files; the archive is truncated");
  const bool only_zeros = std::all_of(bytes.begin() + end, bytes.end(), [](std::byte b) { return b == std::byte{0}; });
  GALLEY_CHECK_FILE(only_zeros, path, "data after the end mark; list concatenated archives one by one in `path`");
  return members;
}

}  // namespace galley
