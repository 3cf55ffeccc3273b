/*
 * Every fixed limit, with its reason. What an operator may change is an option instead.
 */
#ifndef QUIRE_BASE_LIMITS_H
#define QUIRE_BASE_LIMITS_H

/* HTTP */
#define LIMIT_BODY_BYTES (8u << 20)       /* a 128k-token prompt with escapes; more is 413 */
#define LIMIT_HEAD_BYTES (16u << 10)      /* request line and headers; more is 414 or 431 */
#define LIMIT_HTTP_POOL_BYTES (16u << 10) /* the HTTP library's buffers of one connection */
#define LIMIT_OUTPUT_BYTES (256u << 10)   /* unsent answer bytes of one slow client */
#define LIMIT_STALL_SECONDS 30            /* then a stalled reader is dropped */
#define LIMIT_HEAD_SECONDS 10             /* request line and headers must be there by then */
#define LIMIT_BODY_SECONDS 30             /* and the body by then */
#define LIMIT_LINGER_SECONDS 2            /* a refused client may go on sending for so long */
#define LIMIT_LINGERING 32                /* of them at once; others are reset */
#define LIMIT_KEEPALIVE_SECONDS 5         /* silence on a stream before a comment is sent */
#define LIMIT_IDLE_SECONDS 75             /* a kept-alive connection without a request */
#define LIMIT_DRAIN_IDLE_SECONDS 2        /* the same while draining: one may be under way */
#define LIMIT_CLOSE_MS 1000               /* for connections not yet accepted, once no more come */
#define LIMIT_END_SECONDS 5               /* after the drain, for requests that do not end */
#define LIMIT_SEND_BUFFER_BYTES                                                                    \
    (64u << 10) /* SO_SNDBUF: what the kernel holds of a slow client's answer */
#define LIMIT_PREPROCESSING_QUEUE                                                                  \
    256                    /* parsed requests waiting for the preprocessing thread; more is 429 */
#define LIMIT_API_KEYS 256 /* each is compared with every request's key */
#define LIMIT_API_KEY_BYTES 256 /* keys are padded to this for comparing */

/* Requests */
#define LIMIT_CHOICES                                                                              \
    128 /* n, where --max-seqs is as large: each is a sequence (CVE-2026-34756's kind) */
#define LIMIT_CHOICES_QUEUED 16 /* n where --max-seqs is smaller: the choices take turns */
#define LIMIT_PROMPTS 128       /* prompts in one list; with n at most LIMIT_SEQUENCES together */
#define LIMIT_INPUTS 2048       /* texts of one request for embeddings or scores, as OpenAI */
#define LIMIT_SEQUENCES 128     /* sequences of one request, the default --max-seqs */
#define LIMIT_STOPS 32          /* stop strings, and stop tokens; editors send a dozen */
#define LIMIT_STOP_BYTES 1024   /* held-back text of a stream is at most this long */
#define LIMIT_BAD_WORDS 128     /* each is looked for behind every token */
#define LIMIT_BAD_WORD_TOKENS 32
#define LIMIT_TOOLS 1024            /* of one request; each call's name is looked up among them */
#define LIMIT_TOOL_NAME_BYTES 256   /* and of a parameter's, to look up its type */
#define LIMIT_CALL_HEAD_BYTES 16384 /* text held back until it is a call or is none */
#define LIMIT_LOGIT_BIAS 1024       /* entries */
#define LIMIT_LOGPROBS 20           /* as OpenAI */
#define LIMIT_MESSAGES 2048         /* chat messages of one request */
#define LIMIT_TIMEOUT_SECONDS 86400 /* a day: whoever waits longer has left */
#define LIMIT_JSON_DEPTH 64         /* nested arrays and objects: bounds cJSON's recursion */

/* Constrained output: sources that compile on the stack below without overflow, tried with deep
   references and rule chains */
#define LIMIT_SCHEMA_BYTES (128u << 10)
#define LIMIT_GRAMMAR_BYTES (64u << 10) /* Lark, GBNF */
#define LIMIT_REGEX_BYTES (16u << 10)   /* the compiler's memory grows in the square of them */
#define LIMIT_GRAMMAR_STACK_BYTES (64u << 20)
#define LIMIT_FORCED_TOKENS 32 /* appended at once where a grammar leaves no choice */
#define LIMIT_GRAMMARS 256     /* compiled ones kept for later requests */

/* The swap file */
#define LIMIT_SWAP_STEP_BYTES                                                                      \
    (8u << 20) /* moved between looks at cancels and arrivals: 40 ms at 200 MB/s */

/* The prefix cache on disk */
#define LIMIT_CACHE_LOAD_SECONDS 10 /* at start, half for heads; then ready without the rest */
#define LIMIT_CACHE_SAVE_SECONDS 5  /* writing what is missing at the end, after the drain */

/* Model files */
#define LIMIT_TENSORS 65536
#define LIMIT_METADATA 4096   /* keys */
#define LIMIT_KEY_BYTES 65535 /* GGUF specification */
#define LIMIT_TOKEN_TYPES 16u /* rows of an encoder's token types; BERT has 2 */
#define LIMIT_LABELS 1024u    /* outputs of a classification head */
#define LIMIT_VOCABULARY (1u << 20)
#define LIMIT_LAYERS 1024
#define LIMIT_TEMPLATE_BYTES (64u << 10) /* compiling is not bounded by fuel: see textshim */

/* The log */
#define LIMIT_LOG_BYTES (256u << 10) /* waiting lines, a thousand; more are counted, not kept */
#define LIMIT_LOG_END_MS 1000        /* that the process' end waits for them to be read */

#endif
