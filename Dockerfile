# Quire in a container: built from source in the first stage, only what runs in the second.
#
#   docker build -t quire .                                  model mounted at /models
#   docker build -t quire --build-arg MODEL=smollm2 .        model fetched, checked and baked in
#   docker build -t quire --build-arg MODEL=models/my.gguf . a file of this folder baked in
#   docker run --read-only --memory 512m -p 8080:8080 -v "$PWD/models:/models:ro" quire
#
# The base is an argument, so that an image can be built from a mirror or a tree of one's own.

ARG BASE=debian:bookworm
ARG SLIM_BASE=debian:bookworm-slim

FROM ${BASE} AS build
ARG MODEL=
WORKDIR /src
COPY scripts/lib.sh scripts/install-packages scripts/
RUN scripts/install-packages build ${MODEL:+quickstart}
COPY . .
RUN mkdir -p /out/models \
 && if [ -z "${MODEL}" ]; then echo "no model is baked in: mount one at /models"; \
    elif [ -f "${MODEL}" ]; then cp "${MODEL}" /out/models/model.gguf; \
    else scripts/fetch-model "${MODEL}" --to /out/models/model.gguf; fi
RUN meson setup /build --prefix=/usr/local -Dtests=false \
 && meson compile -C /build \
 && DESTDIR=/out meson install -C /build --no-rebuild --strip

FROM ${SLIM_BASE}
RUN apt-get update -q \
 && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
    libmicrohttpd12 libcjson1 libpcre2-8-0 \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/debconf/*-old /var/log/apt /var/log/dpkg.log
COPY --from=build /out/usr/local/bin/quire /usr/local/bin/quire
COPY --from=build /out/models /models
# A number, so that Kubernetes' runAsNonRoot can tell; nothing needs the name.
USER 65532:65532
ENV QUIRE_HOST=0.0.0.0 QUIRE_PORT=8080 QUIRE_MODEL=/models/model.gguf
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["quire", "healthcheck"]
ENTRYPOINT ["quire"]
CMD ["serve"]
