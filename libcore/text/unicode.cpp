#include "libcore/text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>

#include "libcore/base/error.h"
#include "libcore/base/utf8.h"

namespace galley::text {
namespace {

/// Symbols that Unicode calls alphabetic (Other_Alphabetic among So): letters in circles and squares.
bool is_alphabetic_symbol(uint32_t c) {
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

uint8_t class_of(uint32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT: return kLetter | kUpper | kWord;
    case UTF8PROC_CATEGORY_LL: return kLetter | kLower | kWord;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: return kLetter | kUpper | kLower | kWord;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME: return kUpper | kLower | kWord;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL: return kNumber | kWord;
    case UTF8PROC_CATEGORY_NO: return kNumber;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return kSpace;
    case UTF8PROC_CATEGORY_PC: return kPunctuation | kWord;
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO: return kPunctuation;
    case UTF8PROC_CATEGORY_SO: return is_alphabetic_symbol(c) ? kWord : 0;
    default: break;
  }
  if (c == '\r' || c == '\n') return kSpace | kNewline;
  if ((c >= 9 && c <= 13) || c == 0x85) return kSpace;
  return c == 0x200C || c == 0x200D ? kWord : 0;
}

constexpr uint8_t kBoundary = 1;  // A normal form never joins this character with those before it.
constexpr uint8_t kStable = 2;    // It is its own normal form.

struct ByteSpelling {
  std::array<uint16_t, 256> characters{};
  std::array<int16_t, 512> bytes{};
  ByteSpelling() {
    bytes.fill(-1);
    uint16_t next = 256;
    for (uint16_t b = 0; b < 256; ++b) {
      const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      characters[b] = printable ? b : next++;
      bytes[characters[b]] = static_cast<int16_t>(b);
    }
  }
};
const ByteSpelling& byte_spelling() {
  static const ByteSpelling spelling;
  return spelling;
}

}  // namespace

ClassTable::ClassTable() {
  std::map<std::vector<uint8_t>, uint16_t> known;
  for (uint32_t block = 0; block < index_.size(); ++block) {
    std::vector<uint8_t> classes(128);
    for (uint32_t i = 0; i < 128; ++i) classes[i] = class_of(block << 7 | i);
    const auto [entry, added] = known.emplace(std::move(classes), static_cast<uint16_t>(known.size()));
    if (added) blocks_.insert(blocks_.end(), entry->first.begin(), entry->first.end());
    index_[block] = entry->second;
  }
}

const ClassTable& ClassTable::get() {
  static const ClassTable table;
  return table;
}

void append_utf8(std::string& text, uint32_t c) {
  utf8proc_uint8_t bytes[4];
  const auto n = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(n));
}

void check_utf8(std::string_view text, std::string_view name) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t eight = 0;
    while (at + 8 <= text.size() && (std::memcpy(&eight, text.data() + at, 8), (eight & 0x8080808080808080u) == 0)) at += 8;
    if (at == text.size()) return;
    if (static_cast<uint8_t>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const size_t n = utf8_length(text, at);
    if (n == 0) break;
    at += n;
  }
  if (at == text.size()) return;
  const std::string_view before = text.substr(0, at);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const size_t start = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
  const auto column = std::count_if(before.begin() + static_cast<std::ptrdiff_t>(start), before.end(),
                                    [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }) +
                      1;
  constexpr std::string_view kHex = "0123456789ABCDEF";
  const auto byte = static_cast<uint8_t>(text[at]);
  throw Error(ErrorCode::kInput, cat("byte 0x", kHex[byte >> 4], kHex[byte & 15], " at offset ", at,
                                     " is not UTF-8; convert the text to UTF-8, or use the byte tokenizer"))
      .at({.file = std::string(name), .line = static_cast<int>(line), .column = static_cast<int>(column)});
}

/// The length of the longest beginning of a character at text[at], which the next byte breaks or the end cuts off.
static size_t broken_length(std::string_view text, size_t at, bool& cut_off) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(at);
  cut_off = false;
  const size_t length = first >= 0xC2 && first <= 0xDF ? 2 : (first & 0xF0) == 0xE0 ? 3 : first >= 0xF0 && first <= 0xF4 ? 4 : 1;
  for (size_t i = 1; i < length; ++i) {
    if (at + i == text.size()) {
      cut_off = true;
      return i;
    }
    uint8_t low = 0x80, high = 0xBF;  // The second byte excludes overlong forms, surrogates and what is above U+10FFFF.
    if (i == 1) {
      if (first == 0xE0) low = 0xA0;
      if (first == 0xED) high = 0x9F;
      if (first == 0xF0) low = 0x90;
      if (first == 0xF4) high = 0x8F;
    }
    if (byte(at + i) < low || byte(at + i) > high) return i;
  }
  return 1;
}

std::string replace_invalid_utf8(std::string_view text) {
  if (find_invalid_utf8(text) == std::string_view::npos) return std::string(text);
  std::string out;
  for (size_t at = 0; at < text.size();) {
    if (const size_t n = utf8_length(text, at); n != 0) {
      out.append(text.substr(at, n));
      at += n;
    } else {
      bool cut_off = false;
      at += broken_length(text, at, cut_off);
      out += "\xEF\xBF\xBD";
    }
  }
  return out;
}

size_t unfinished_utf8(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const size_t at = text.size() - back;
    if ((static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) continue;
    bool cut_off = false;
    return static_cast<uint8_t>(text[at]) >= 0x80 && broken_length(text, at, cut_off) == back && cut_off ? back : 0;
  }
  return 0;
}

bool is_mark(uint32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC || category == UTF8PROC_CATEGORY_ME;
}
bool is_nonspacing_mark(uint32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_MN; }
bool is_other(uint32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CS: return true;
    default: return false;
  }
}

void append_lowercase(std::string& text, uint32_t c) {
  if (c == 0x130) {
    text += "i\xCC\x87";
  } else {
    append_utf8(text, static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
  }
}

NormalForms::NormalForms(NormalForm form) : form_(form), flags_(0x110000, 0) {
  const bool compatibility = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const bool composes = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const auto decompose = [&](uint32_t c, bool compat, utf8proc_int32_t* out) {
    int state = 0;
    return utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), out, 32,
                                   static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | (compat ? UTF8PROC_COMPAT : 0)), &state);
  };
  std::vector<uint8_t> second(0x110000, 0);  // Characters that join one before them.
  for (uint32_t c = 0x1161; c <= 0x11C2; ++c) second[c] = 1;
  const auto changes = [](uint32_t c) {
    return utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->decomp_seqindex != UINT16_MAX || (c >= 0xAC00 && c <= 0xD7A3);
  };
  utf8proc_int32_t parts[32];
  for (uint32_t c = 0; c < 0x110000; ++c) {
    if ((c >= 0xAC00 && c <= 0xD7A3) || !changes(c)) continue;
    const auto n = decompose(c, false, parts);
    for (utf8proc_ssize_t i = 1; i < n; ++i) second[static_cast<size_t>(parts[i])] = 1;
  }
  for (uint32_t c = 0; c < 0x110000; ++c) {
    const auto* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
    if (!changes(c)) {
      flags_[c] = property->combining_class != 0 || (composes && second[c]) ? 0 : kBoundary | kStable;
      continue;
    }
    const auto n = decompose(c, compatibility, parts);
    const auto first = static_cast<uint32_t>(n > 0 ? parts[0] : 0);
    const bool joins = utf8proc_get_property(static_cast<utf8proc_int32_t>(first))->combining_class != 0 || (composes && second[first]);
    flags_[c] = joins ? 0 : kBoundary;
    std::string own, normal;
    append_utf8(own, c);
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    if (!joins) next(own, 0, normal);
    if (!joins && normal == own) flags_[c] |= kStable;
  }
}

const NormalForms& NormalForms::get(NormalForm form) {
  switch (form) {
    case NormalForm::kNfc: {
      static const NormalForms nfc(NormalForm::kNfc);
      return nfc;
    }
    case NormalForm::kNfd: {
      static const NormalForms nfd(NormalForm::kNfd);
      return nfd;
    }
    case NormalForm::kNfkc: {
      static const NormalForms nfkc(NormalForm::kNfkc);
      return nfkc;
    }
    default: break;
  }
  static const NormalForms nfkd(NormalForm::kNfkd);
  return nfkd;
}

bool NormalForms::unchanged(std::string_view text) const {
  const char* p = text.data();
  const char* end = p + text.size();
  while (p < end) {
    if (static_cast<uint8_t>(*p) < 0x80) {
      ++p;
    } else if ((flags_[next_char(p)] & kStable) == 0) {
      return false;
    }
  }
  return true;
}

size_t NormalForms::next(std::string_view text, size_t at, std::string& out) const {
  const char* p = text.data() + at;
  const char* end = text.data() + text.size();
  bool stable = (flags_[next_char(p)] & kStable) != 0;
  while (p < end) {
    const char* q = p;
    const uint8_t flags = flags_[next_char(q)];
    if (flags & kBoundary) break;
    stable = false;
    p = q;
  }
  const auto length = static_cast<size_t>(p - text.data()) - at;
  out.clear();
  if (stable) {
    out.append(text.substr(at, length));
    return at + length;
  }
  const bool compatibility = form_ == NormalForm::kNfkc || form_ == NormalForm::kNfkd;
  const bool composes = form_ == NormalForm::kNfc || form_ == NormalForm::kNfkc;
  utf8proc_uint8_t* result = nullptr;
  const int options = UTF8PROC_STABLE | (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) | (compatibility ? UTF8PROC_COMPAT : 0);
  const auto n = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data() + at), static_cast<utf8proc_ssize_t>(length), &result,
                              static_cast<utf8proc_option_t>(options));
  GALLEY_ASSERT(n >= 0, "utf8proc: ", utf8proc_errmsg(n));
  out.assign(reinterpret_cast<const char*>(result), static_cast<size_t>(n));
  std::free(result);
  return at + length;
}

uint32_t byte_character(uint8_t byte) { return byte_spelling().characters[byte]; }

void append_byte_characters(std::string& text, std::string_view bytes) {
  for (const char b : bytes) append_utf8(text, byte_character(static_cast<uint8_t>(b)));
}

bool bytes_of_piece(std::string_view piece, std::string& bytes) {
  bytes.clear();
  const char* p = piece.data();
  const char* end = p + piece.size();
  while (p < end) {
    const uint32_t c = next_char(p);
    const int byte = c < 512 ? byte_spelling().bytes[c] : -1;
    if (byte < 0) return false;
    bytes += static_cast<char>(byte);
  }
  return true;
}

}  // namespace galley::text
