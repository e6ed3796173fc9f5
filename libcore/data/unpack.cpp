#include "libcore/data/unpack.h"

#include <archive.h>
#include <archive_entry.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/in_file.h"

namespace galley {
namespace {

void check_budget(size_t bytes, int64_t budget, const std::string& path) {
  if (static_cast<int64_t>(bytes) > budget)
    fail(ErrorCode::kInput, path, ": more than ", budget, " bytes when unpacked, which is the limit; unpack it on disk first",
         " (a plain .tar is read in place), or raise the source's limit (`memory`) if it has one");
}

struct CloseArchive {
  void operator()(archive* reader) const { archive_read_free(reader); }
};

}  // namespace

bool is_gzip(const std::string& path) {
  const InputFile file(path);
  std::array<std::byte, 2> magic{};
  if (file.size() < 2) return false;
  file.read(0, magic);
  return magic[0] == std::byte{0x1f} && magic[1] == std::byte{0x8b};
}

std::vector<std::byte> read_gzip(const std::string& path, int64_t budget) {
  const std::string packed = read_file(path);
  const auto* bytes = reinterpret_cast<const std::byte*>(packed.data());
  if (packed.size() < 2 || packed[0] != '\x1f' || packed[1] != '\x8b') {
    check_budget(packed.size(), budget, path);
    return {bytes, bytes + packed.size()};
  }
  z_stream stream{};
  GALLEY_ASSERT(inflateInit2(&stream, 16 + MAX_WBITS) == Z_OK);
  const std::unique_ptr<z_stream, void (*)(z_stream*)> guard(&stream, [](z_stream* open) { inflateEnd(open); });
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  size_t fed = 0;
  std::vector<std::byte> result;
  constexpr size_t kStep = size_t{1} << 20;
  // The last four bytes hold the length (of a file with a single member below 4 GiB). It is only a hint for the buffer size. Deflate
  // expands data at most 1032 times.
  uint32_t hint = 0;
  if (packed.size() >= 4) std::memcpy(&hint, packed.data() + packed.size() - 4, 4);
  result.reserve(static_cast<size_t>(std::min({static_cast<int64_t>(hint), static_cast<int64_t>(packed.size()) * 1032, budget})) + kStep);
  for (;;) {
    if (stream.avail_in == 0) {
      // avail_in has 32 bits.
      const size_t part = std::min(packed.size() - fed, size_t{1} << 30);
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data())) + fed;
      stream.avail_in = static_cast<uInt>(part);
      fed += part;
    }
    const size_t old = result.size();
    result.resize(old + kStep);
    stream.next_out = reinterpret_cast<Bytef*>(result.data() + old);
    stream.avail_out = static_cast<uInt>(kStep);
    const int status = inflate(&stream, Z_NO_FLUSH);
    result.resize(old + kStep - stream.avail_out);
    check_budget(result.size(), budget, path);
    if (status == Z_STREAM_END) {
      if (stream.avail_in == 0 && fed == packed.size()) break;
      GALLEY_CHECK_FILE(inflateReset(&stream) == Z_OK, path, "damaged gzip file");  // the next member
      continue;
    }
    GALLEY_CHECK_INPUT(status == Z_OK && (stream.avail_in > 0 || stream.avail_out == 0 || fed < packed.size()), path,
                       ": damaged or truncated gzip file", stream.msg == nullptr ? "" : cat(": ", stream.msg));
  }
  return result;
}

std::vector<std::byte> read_compressed(const std::string& path, int64_t budget) {
  const std::unique_ptr<archive, CloseArchive> reader(archive_read_new());
  GALLEY_ASSERT(reader != nullptr);
  archive_read_support_filter_all(reader.get());
  archive_read_support_format_raw(reader.get());
  archive_entry* entry = nullptr;
  const auto check = [&](bool good) {
    const char* reason = archive_error_string(reader.get());
    GALLEY_CHECK_FILE(good, path, "cannot be unpacked: ", reason == nullptr ? "damaged" : reason);
  };
  check(archive_read_open_filename(reader.get(), path.c_str(), 1 << 20) == ARCHIVE_OK);
  check(archive_read_next_header(reader.get(), &entry) == ARCHIVE_OK);
  std::vector<std::byte> result;
  for (;;) {
    constexpr size_t kStep = size_t{1} << 20;
    const size_t old = result.size();
    result.resize(old + kStep);
    const la_ssize_t got = archive_read_data(reader.get(), result.data() + old, kStep);
    check(got >= 0);
    result.resize(old + static_cast<size_t>(got));
    check_budget(result.size(), budget, path);
    if (got == 0) return result;
  }
}

}  // namespace galley
