# Rules shared by every target: the include path is the repository root; warnings are errors with the compilers that were tried, while the
# warnings of a newer one must not stop a user's build.
if((CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 15)
   OR (CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 20))
  set(tried ON)
else()
  set(tried OFF)
endif()
option(GALLEY_WARNINGS_AS_ERRORS "Warnings stop the build" ${tried})
add_library(galley_options INTERFACE)
target_include_directories(galley_options INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(galley_options INTERFACE -Wall -Wextra $<$<BOOL:${GALLEY_WARNINGS_AS_ERRORS}>:-Werror>
                       -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 warns falsely about every "text" + std::string (its bug 105651), and about headers of the standard library that are precompiled.
  target_compile_options(galley_options INTERFACE -Wno-restrict -Wno-stringop-overflow -Wno-array-bounds)
endif()
if(GALLEY_SANITIZE)
  target_compile_options(galley_options INTERFACE -fsanitize=${GALLEY_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  if(GALLEY_SANITIZE MATCHES "undefined" AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    # ASan reports most of what these find. With them, clang compiles a kernel for four times as long.
    target_compile_options(galley_options INTERFACE -fno-sanitize=null,object-size,vptr,pointer-overflow)
  endif()
  target_link_options(galley_options INTERFACE -fsanitize=${GALLEY_SANITIZE})
endif()
find_program(GALLEY_CCACHE ccache)
if(GALLEY_CCACHE)
  # Without pch_defines it would not keep what was compiled with a precompiled header.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${GALLEY_CCACHE})
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess> "$<$<CXX_COMPILER_ID:Clang>:SHELL:-Xclang -fno-pch-timestamp>")
endif()

# Parsing the headers of the standard library takes a third of the time of an ordinary file, so the rooms share a precompiled one: GCC uses
# it at every optimization level, and with definitions of names that it does not contain. JSON is not in it: loading it takes 0.7 s. Without
# this option (preset `sanitize`) each file or group of files is compiled with what it includes itself, so that a missing include is found.
option(GALLEY_PRECOMPILE "Precompile the headers of the standard library for the rooms" ON)
set(GALLEY_STANDARD_HEADERS <algorithm> <array> <atomic> <chrono> <cmath> <cstdint> <cstdio> <cstring> <filesystem> <functional> <limits>
    <map> <memory> <mutex> <numeric> <optional> <set> <span> <string> <string_view> <tuple> <unordered_map> <utility> <vector>)

# galley_precompile(<target> [headers...]): the target and those that reuse its header parse the standard library's headers and these once.
function(galley_precompile target)
  target_precompile_headers(${target} PRIVATE ${GALLEY_STANDARD_HEADERS} ${ARGN})
endfunction()

# galley_optimize(<target> <level>): where no time is spent at run time, -O1 or -O2 instead of Release's -O3 shortens the build.
function(galley_optimize target level)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O${level}>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND level EQUAL 1)
    target_compile_options(${target} PRIVATE -Wno-array-bounds)  # GCC 12 at -O1, as above
  endif()
endfunction()

# Compiling several files of a room as one shortens a full build by a third, since each parses the same headers and instantiates the same
# templates. A change of one file then compiles all of its group: leave the option off while you edit.
option(GALLEY_UNITY "Compile the files of most rooms and tests in groups" OFF)

# galley_group(<target>): compile the files of this target in groups with GALLEY_UNITY. Names in anonymous namespaces are unique in a group.
function(galley_group target)
  if(GALLEY_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      target_compile_options(${target} PRIVATE -Wno-subobject-linkage)  # for GCC the files of a group are headers
    endif()
  endif()
endfunction()

# galley_room(<name> [FOLDER dir] [OPTIMIZE level] [LOOPS files...] [OWN_FLAGS] [SEPARATE] [NEEDS rooms and libraries...]): every *.cpp of
# libcore/<name> as one object library galley_<name>, so that a fuzz target or a sanitizer build can link only the rooms it uses. LOOPS:
# files with loops over the elements of tensors, which keep -O3. OWN_FLAGS: the room gets flags that keep it from using galley_standard's
# header. SEPARATE: its files repeat names and are never grouped.
function(galley_room name)
  cmake_parse_arguments(ROOM "OWN_FLAGS;SEPARATE" "FOLDER;OPTIMIZE" "LOOPS;NEEDS" ${ARGN})
  if(NOT ROOM_FOLDER)
    set(ROOM_FOLDER ${name})
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/libcore/${ROOM_FOLDER}/*.cpp)
  if(NOT sources OR (GALLEY_ROOMS AND NOT name IN_LIST GALLEY_ROOMS))
    return()
  endif()
  add_library(galley_${name} OBJECT ${sources})
  target_link_libraries(galley_${name} PUBLIC galley_options ${ROOM_NEEDS})
  if(ROOM_OPTIMIZE)
    galley_optimize(galley_${name} ${ROOM_OPTIMIZE})
    # The preset `sanitize` compiles these without optimization, in half the time, except what the operators' cases spend their time in.
    if(GALLEY_SANITIZE AND NOT GALLEY_PRECOMPILE AND NOT name MATCHES "^(graph|ops|backends|backends_ref|backends_cuda)$")
      target_compile_options(galley_${name} PRIVATE -O0)
    endif()
  endif()
  foreach(file ${ROOM_LOOPS})
    set_property(SOURCE ${CMAKE_SOURCE_DIR}/libcore/${ROOM_FOLDER}/${file} APPEND PROPERTY COMPILE_OPTIONS $<$<CONFIG:Release>:-O3>)
  endforeach()
  if(GALLEY_PRECOMPILE AND NOT ROOM_OWN_FLAGS)
    target_precompile_headers(galley_${name} REUSE_FROM galley_standard)
  endif()
  if(NOT ROOM_SEPARATE AND NOT ROOM_OWN_FLAGS)
    galley_group(galley_${name})
  endif()
  set_property(GLOBAL APPEND PROPERTY GALLEY_ROOMS galley_${name})
  file(GLOB headers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/libcore/${ROOM_FOLDER}/*.h)
  set_property(GLOBAL PROPERTY GALLEY_ROOM_IN_${ROOM_FOLDER} ${name})
  set_property(GLOBAL PROPERTY GALLEY_SOURCES_OF_${name} ${sources} ${headers})
endfunction()

# galley_used_rooms(<out> <files...>): the rooms whose headers these files include, directly, through headers of tests/, or through other
# rooms. Call it after all rooms are declared.
function(galley_used_rooms out)
  set(rooms)
  set(headers)  # of tests/
  set(files ${ARGN})
  while(files)
    list(POP_FRONT files file)
    file(STRINGS ${file} includes REGEX "^#include \"(libcore|tests)/")
    foreach(include ${includes})
      string(REGEX REPLACE "^#include \"([^\"]+)/([^\"/]+)\".*" "\\1;\\2" parts "${include}")
      list(GET parts 0 folder)
      list(GET parts 1 header)
      if(folder MATCHES "^tests/")
        if(NOT ${folder}/${header} IN_LIST headers)
          list(APPEND headers ${folder}/${header})
          list(APPEND files ${CMAKE_SOURCE_DIR}/${folder}/${header})
        endif()
        continue()
      endif()
      string(REPLACE "libcore/" "" folder ${folder})
      get_property(room GLOBAL PROPERTY GALLEY_ROOM_IN_${folder})
      if(room AND NOT room IN_LIST rooms)
        list(APPEND rooms ${room})
        get_property(sources GLOBAL PROPERTY GALLEY_SOURCES_OF_${room})
        list(APPEND files ${sources})
      endif()
    endforeach()
  endwhile()
  set(${out} ${rooms} PARENT_SCOPE)
endfunction()
