// Pascal VOC's XML, by expat. Everything that could make a small file large is refused: document type declarations (and with them
// entities), deep nesting, long texts.

#include <expat.h>

#include <charconv>
#include <cmath>
#include <memory>

#include "libcore/base/error.h"
#include "libcore/data/annotations.h"

namespace galley {
namespace {

constexpr size_t kMaxDepth = 64, kMaxText = 64 << 10;
constexpr std::string_view kForeign = "no annotation of Pascal VOC is like that: see whether the file belongs into this folder";

class VocReader {
 public:
  VocReader(std::string_view xml, const std::string& file) : file_(file), parser_(XML_ParserCreate(nullptr), XML_ParserFree) {
    GALLEY_ASSERT(parser_ != nullptr);
    XML_Parser parser = parser_.get();
    XML_SetUserData(parser, this);
    XML_SetElementHandler(
        parser, [](void* self, const char* name, const char**) { static_cast<VocReader*>(self)->start(name); },
        [](void* self, const char*) { static_cast<VocReader*>(self)->end(); });
    XML_SetCharacterDataHandler(
        parser, [](void* self, const char* text, int size) { static_cast<VocReader*>(self)->add({text, static_cast<size_t>(size)}); });
    XML_SetStartDoctypeDeclHandler(parser, [](void* self, const char*, const char*, const char*, int) {
      static_cast<VocReader*>(self)->refuse("a document type declaration is not allowed", "remove it (<!DOCTYPE ...>), and entities");
    });
    // Chunks, since expat takes an int.
    constexpr size_t kChunk = 1 << 20;
    do {
      const std::string_view part = xml.substr(0, kChunk);
      xml.remove_prefix(part.size());
      const XML_Status status = XML_Parse(parser, part.data(), static_cast<int>(part.size()), xml.empty());
      if (!refusal_.empty()) fail_at(refused_line_, refusal_, cure_);
      if (status != XML_STATUS_OK) fail_broken(XML_GetErrorCode(parser));
    } while (!xml.empty());
    if (!root_) fail_at(line(), "the root element is not <annotation>", "only annotations of Pascal VOC belong into this folder");
  }

  VocAnnotation take() { return std::move(result_); }

 private:
  int line() const { return static_cast<int>(XML_GetCurrentLineNumber(parser_.get())); }
  [[noreturn]] void fail_at(int line, const std::string& message, const std::string& cure) const {
    throw Error(ErrorCode::kInput, message).at({.file = file_, .line = line}).suggest(cure);
  }
  /// Not XML.
  [[noreturn]] void fail_broken(XML_Error code) const {
    std::string cure = "correct the file there, or export the annotation again";
    if (code == XML_ERROR_NO_ELEMENTS || code == XML_ERROR_UNCLOSED_TOKEN || code == XML_ERROR_UNCLOSED_CDATA_SECTION)
      cure = "the file ends too early: copy it again from its source";
    if (code == XML_ERROR_TAG_MISMATCH) cure = "each <element> needs its </element>; the one before this place is open";
    if (code == XML_ERROR_INVALID_TOKEN) cure = "write & as &amp; and < as &lt; in texts";
    if (code == XML_ERROR_UNDEFINED_ENTITY) cure = "write the character itself; only &amp; &lt; &gt; &quot; and &apos; are known";
    if (code == XML_ERROR_JUNK_AFTER_DOC_ELEMENT) cure = "remove what follows </annotation>";
    fail_at(line(), XML_ErrorString(code), cure);
  }
  /// Stops the parser. C code calls the handlers, so that they must not throw.
  void refuse(std::string message, std::string cure) {
    if (!refusal_.empty()) return;
    refusal_ = std::move(message);
    cure_ = std::move(cure);
    refused_line_ = line();
    XML_StopParser(parser_.get(), XML_FALSE);
  }

  void start(const char* name) {
    if (path_.size() >= kMaxDepth) return refuse(cat("more than ", kMaxDepth, " elements inside each other"), std::string(kForeign));
    path_.emplace_back(name);
    text_.clear();
    if (path_.size() == 1) root_ = path_[0] == "annotation";
    if (at({"annotation", "object"})) {
      result_.objects.push_back({.name = "", .box = {NAN, NAN, NAN, NAN}, .line = line()});
    }
  }

  void add(std::string_view text) {
    if (text_.size() + text.size() > kMaxText) return refuse(cat("a text of more than ", kMaxText, " bytes"), std::string(kForeign));
    text_ += text;
  }

  void end() {
    static constexpr std::string_view kCorners[] = {"xmin", "ymin", "xmax", "ymax"};
    if (at({"annotation", "filename"})) result_.filename = trimmed();
    if (at({"annotation", "size", "width"})) result_.width = static_cast<int64_t>(number());
    if (at({"annotation", "size", "height"})) result_.height = static_cast<int64_t>(number());
    if (at({"annotation", "object", "name"})) result_.objects.back().name = trimmed();
    if (at({"annotation", "object", "difficult"})) result_.objects.back().difficult = number() != 0;
    for (size_t i = 0; i < 4; ++i)
      if (at({"annotation", "object", "bndbox", kCorners[i]})) result_.objects.back().box[i] = number();
    if (at({"annotation", "object"})) check(result_.objects.back());
    path_.pop_back();
    text_.clear();
  }

  void check(const VocAnnotation::Object& object) {
    static constexpr std::string_view kCorners[] = {"xmin", "ymin", "xmax", "ymax"};
    if (object.name.empty()) refuse("an <object> without <name>", "name its class, or remove the object");
    for (size_t i = 0; i < 4; ++i)
      if (std::isnan(object.box[i])) {
        refuse(cat("the <object> in line ", object.line, " has no <", kCorners[i], "> in a <bndbox>"),
               "a <bndbox> needs xmin, ymin, xmax and ymax; complete it, or remove the object");
      }
  }

  bool at(std::initializer_list<std::string_view> path) const { return std::equal(path_.begin(), path_.end(), path.begin(), path.end()); }
  std::string trimmed() const {
    const size_t begin = text_.find_first_not_of(" \t\r\n"), last = text_.find_last_not_of(" \t\r\n");
    return begin == std::string::npos ? "" : text_.substr(begin, last - begin + 1);
  }
  double number() {
    const std::string text = trimmed();
    double value = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    constexpr double kMost = 1e9;
    if (error != std::errc() || stop != text.data() + text.size() || !(std::abs(value) <= kMost)) {
      refuse(cat("<", path_.back(), "> is '", text.substr(0, 40), "'; expected a number"), "write it as 12 or 12.5");
      return 0;
    }
    return value;
  }

  std::string file_;
  std::unique_ptr<std::remove_pointer_t<XML_Parser>, void (*)(XML_Parser)> parser_;
  std::vector<std::string> path_;
  std::string text_, refusal_, cure_;
  int refused_line_ = 0;
  bool root_ = false;
  VocAnnotation result_;
};

}  // namespace

VocAnnotation parse_voc(std::string_view xml, const std::string& file) { return VocReader(xml, file).take(); }

}  // namespace galley
