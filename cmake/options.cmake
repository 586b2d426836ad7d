# Compiler flags and build options.
option(MOK_TESTS "Build the tests" ON)
option(MOK_WITH_CUDA "Build the CUDA backend when nvcc is found" ON)
option(MOK_WITH_MPI "Build the MPI peer when MPI is found" ON)
set(MOK_SANITIZE "" CACHE STRING "Sanitizers for the whole build: 'address,undefined' or 'thread'")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()
set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

add_library(mok_headers INTERFACE)
target_include_directories(mok_headers INTERFACE $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)

# Flags of every target of this project. No contraction of a*b+c: a rounding point stands where numerics.md puts it, and nowhere else.
add_library(mok_flags INTERFACE)
target_include_directories(mok_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)
target_link_libraries(mok_flags INTERFACE mok_headers)
target_compile_options(mok_flags INTERFACE -Wall -Wextra -Werror -Wno-unused-function -Wshadow -Wstrict-prototypes -Wmissing-prototypes
                                           -ffp-contract=off -fvisibility=hidden)
if(MOK_SANITIZE)
  target_compile_options(mok_flags INTERFACE -fsanitize=${MOK_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(mok_flags INTERFACE -fsanitize=${MOK_SANITIZE})
endif()
