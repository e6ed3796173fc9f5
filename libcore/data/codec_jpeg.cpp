// JPEG decoding with libjpeg-turbo, through the libjpeg interface because that reports each warning by its code. Warnings that change no
// pixel are recorded. For any other warning the decoder would invent pixels, so the file is rejected.
#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstddef>
#include <cstdio>
#include <vector>

// clang-format off: jpeglib.h needs size_t and FILE, and jerror.h needs jpeglib.h
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

#include "libcore/data/codec.h"

namespace galley {
namespace {

/// Limit on the scans of a progressive file, because each scan costs a pass over the image. 500 is the limit of libjpeg-turbo's tools.
constexpr int kMaxScans = 500;

/// The decoder of a thread, reused for every file.
struct Decoder {
  jpeg_decompress_struct info{};
  jpeg_error_mgr errors{};
  jpeg_progress_mgr progress{};
  std::jmp_buf refused{};
  char reason[JMSG_LENGTH_MAX] = "";  // the error message, set before a jump
  bool out_of_memory = false;
  bool ended = false;       // the file ended before its end marker
  bool extraneous = false;  // bytes outside the image data; up to 7 bytes after a scan go unreported
  char odd_header[JMSG_LENGTH_MAX] = "";
  bool created = false;

  Decoder() = default;
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  ~Decoder() {
    if (created) jpeg_destroy_decompress(&info);
  }
};

Decoder& decoder_of(j_common_ptr info) { return *static_cast<Decoder*>(info->client_data); }

[[noreturn]] void refuse_by_jump(j_common_ptr info) {
  Decoder& decoder = decoder_of(info);
  decoder.out_of_memory = info->err->msg_code == JERR_OUT_OF_MEMORY;
  info->err->format_message(info, decoder.reason);
  std::longjmp(decoder.refused, 1);
}

void on_message(j_common_ptr info, int level) {
  if (level >= 0) return;  // a trace message
  Decoder& decoder = decoder_of(info);
  switch (info->err->msg_code) {
    case JWRN_EXTRANEOUS_DATA: decoder.extraneous = true; return;
    case JWRN_JPEG_EOF: decoder.ended = true; return;  // if data is missing, the entropy decoder reports it later, when it runs out of bits
    case JWRN_JFIF_MAJOR:
    case JWRN_NOT_SEQUENTIAL: info->err->format_message(info, decoder.odd_header); return;
    default: refuse_by_jump(info);
  }
}

void count_scans(j_common_ptr info) {
  Decoder& decoder = decoder_of(info);
  if (decoder.info.input_scan_number <= kMaxScans) return;
  std::snprintf(decoder.reason, sizeof decoder.reason, "more than %d scans", kMaxScans);
  std::longjmp(decoder.refused, 1);
}

// The functions below call setjmp, so they must not hold objects with destructors.

bool create(Decoder& decoder) {
  decoder.info.err = jpeg_std_error(&decoder.errors);
  decoder.errors.error_exit = refuse_by_jump;
  decoder.errors.emit_message = on_message;
  decoder.info.client_data = &decoder;
  if (setjmp(decoder.refused) != 0) return false;
  jpeg_create_decompress(&decoder.info);
  decoder.progress.progress_monitor = count_scans;
  decoder.info.progress = &decoder.progress;
  decoder.created = true;
  return true;
}

bool read_header(Decoder& decoder, const unsigned char* data, size_t size) {
  decoder.reason[0] = decoder.odd_header[0] = '\0';
  decoder.out_of_memory = decoder.ended = decoder.extraneous = false;
  if (setjmp(decoder.refused) != 0) return false;
  jpeg_mem_src(&decoder.info, data, static_cast<unsigned long>(size));
  jpeg_read_header(&decoder.info, TRUE);
  return true;
}

/// Whether the file has all components and, if it ended early, all bits of every coefficient. The entropy decoder detects missing data
/// within a scan, but not missing scans.
bool has_all_scans(const jpeg_decompress_struct& info, bool ended) {
  for (int c = 0; c < info.num_components; ++c) {
    if (info.coef_bits == nullptr) {  // sequential: the quantization table is set when the component's first scan begins
      if (info.comp_info[c].quant_table == nullptr && info.comps_in_scan < info.num_components) return false;
      continue;
    }
    const int* bits = info.coef_bits[c];  // per coefficient: -1 if unknown, else the number of missing low bits
    if (bits[0] < 0) return false;
    if (ended && std::any_of(bits, bits + DCTSIZE2, [](int missing) { return missing != 0; })) return false;
  }
  return true;
}

/// Decodes into rows of `stride` bytes, in the color space info.out_color_space.
bool read_pixels(Decoder& decoder, unsigned char* pixels, size_t stride) {
  if (setjmp(decoder.refused) != 0) return false;
  jpeg_decompress_struct& info = decoder.info;
  jpeg_start_decompress(&info);
  while (info.output_scanline < info.output_height) {
    std::array<JSAMPROW, 16> rows;
    const auto count = std::min<JDIMENSION>(static_cast<JDIMENSION>(rows.size()), info.output_height - info.output_scanline);
    for (JDIMENSION i = 0; i < count; ++i) rows[i] = pixels + (info.output_scanline + i) * stride;
    jpeg_read_scanlines(&info, rows.data(), count);
  }
  // For files with several scans, libjpeg reads all of them before the first row. A single scan holds all components.
  const bool complete = has_all_scans(info, decoder.ended);
  jpeg_finish_decompress(&info);
  if (!complete) std::snprintf(decoder.reason, sizeof decoder.reason, "scans are missing");
  return complete;
}

/// Releases the image's memory at the end of its scope, also after an error.
struct Finish {
  Decoder& decoder;
  ~Finish() { jpeg_abort_decompress(&decoder.info); }
};

/// Converts CMYK to RGB. Adobe programs store CMYK inverted, and practically all CMYK JPEGs come from them.
Image rgb_from_inverted_cmyk(const std::vector<unsigned char>& cmyk, int64_t height, int64_t width) {
  Image image(DType::kU8, height, width, 3);
  uint8_t* rgb = image.as<uint8_t>();
  for (int64_t i = 0; i < image.area(); ++i) {
    const unsigned char* pixel = &cmyk[static_cast<size_t>(4 * i)];
    const int key = pixel[3];
    for (int c = 0; c < 3; ++c) {
      const int product = (255 - pixel[c]) * key + 128;
      rgb[3 * i + c] = static_cast<uint8_t>(std::max(0, key - (((product >> 8) + product) >> 8)));
    }
  }
  return image;
}

[[noreturn]] void refuse(const Decoder& decoder, std::string_view name, const char* part) {
  if (decoder.out_of_memory) fail(ErrorCode::kResource, name, ": not enough memory to decode this JPEG");
  const std::string reason = decoder.reason;
  // libjpeg reports "premature end of data segment" for an end marker inside the data.
  const bool cut = decoder.ended || reason.find("remature end") != std::string::npos || reason == "scans are missing";
  const char* end = decoder.ended ? "Premature end of JPEG file: " : "";
  throw BadSample(cut ? "truncated" : "corrupt", name, cat("damaged JPEG (", part, "): ", end, reason));
}

Irregularity irregularity_of(const Decoder& decoder, std::string_view name) {
  std::string kind, details;
  const auto add = [&](const char* deviation, const std::string& detail) {
    if (kind.empty()) kind = deviation;
    details += (details.empty() ? "" : ", ") + detail;
  };
  if (decoder.ended) add("no end marker", "no end marker");
  if (decoder.extraneous) add("extraneous bytes", "extraneous bytes");
  if (decoder.odd_header[0] != '\0') add("header", decoder.odd_header);
  return {kind, kind.empty() ? "" : cat(name, ": JPEG deviates from the format but was read in full: ", details)};
}

}  // namespace

Image decode_jpeg(std::span<const std::byte> file, std::string_view name, const DecodeLimits& limits, Irregularity* irregularity) {
  thread_local Decoder decoder;
  if (!decoder.created && !create(decoder)) fail(ErrorCode::kResource, "libjpeg-turbo cannot create a decoder: ", decoder.reason);
  const Finish finish{decoder};
  if (!read_header(decoder, reinterpret_cast<const unsigned char*>(file.data()), file.size())) refuse(decoder, name, "header");
  jpeg_decompress_struct& info = decoder.info;
  const int64_t width = info.image_width, height = info.image_height;
  if (width > limits.max_dimension || height > limits.max_dimension || width * height > limits.max_pixels)
    throw BadSample("too large", name,
                    cat("JPEG of ", width, " x ", height, " pixels; the limit is ", limits.max_dimension, " per side and ",
                        limits.max_pixels, " in total"));
  Image image;
  switch (info.jpeg_color_space) {
    case JCS_CMYK:
    case JCS_YCCK: {
      info.out_color_space = JCS_CMYK;
      std::vector<unsigned char> cmyk(static_cast<size_t>(width * height) * 4);
      if (!read_pixels(decoder, cmyk.data(), static_cast<size_t>(width) * 4)) refuse(decoder, name, "pixels");
      image = rgb_from_inverted_cmyk(cmyk, height, width);
      break;
    }
    case JCS_GRAYSCALE:
    case JCS_RGB:
    case JCS_YCbCr: {
      const int64_t channels = info.jpeg_color_space == JCS_GRAYSCALE ? 1 : 3;
      info.out_color_space = channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
      image = Image(DType::kU8, height, width, channels);
      if (!read_pixels(decoder, image.as<uint8_t>(), static_cast<size_t>(width * channels))) refuse(decoder, name, "pixels");
      break;
    }
    default: throw BadSample("format", name, cat("a JPEG of ", info.num_components, " components in an unknown color space"));
  }
  if (irregularity != nullptr) *irregularity = irregularity_of(decoder, name);
  return image;
}

}  // namespace galley
