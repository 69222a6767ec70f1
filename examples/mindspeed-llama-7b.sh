#!/bin/bash
# Pretraining of LLaMA 7B on one node of eight Ascend 910B with MindSpeed-LLM, as somebody may run it today: a pipeline
# of eight stages. `apss-cp import` reads it; see docs/import.md.
export CUDA_DEVICE_MAX_CONNECTIONS=1
export HCCL_CONNECT_TIMEOUT=1800

NPUS_PER_NODE=8
NNODES=${NNODES:-1}
NODE_RANK=${NODE_RANK:-0}
WORLD_SIZE=$(($NPUS_PER_NODE * $NNODES))

TOKENIZER=${TOKENIZER:-./tokenizer.model}
DATA=${DATA:-./data/corpus_text_document}
TP=1
PP=$((WORLD_SIZE / TP))

LAUNCH="--nproc_per_node $NPUS_PER_NODE --nnodes $NNODES --node_rank $NODE_RANK \
    --master_addr localhost --master_port 6001"

MODEL_ARGS=(
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 11008
    --num-attention-heads 32
    --max-position-embeddings 2048
    --position-embedding-type rope
    --normalization RMSNorm
    --swiglu
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --tokenizer-type Llama2Tokenizer
    --tokenizer-model "$TOKENIZER"
)

PARALLEL_ARGS=(
    --tensor-model-parallel-size "$TP"
    --pipeline-model-parallel-size "$PP"
    --sequence-parallel
)

TRAINING_ARGS="
    --seq-length 2048 --micro-batch-size 4 --global-batch-size 256
    --train-iters 5000 --lr 1.0e-6 --min-lr 1.0e-7 --lr-decay-style cosine --lr-warmup-fraction 0.01
    --weight-decay 0.1 --clip-grad 1.0 --adam-beta1 0.9 --adam-beta2 0.95
    --attention-dropout 0.0 --hidden-dropout 0.0 --init-method-std 0.01
    --fp16 --initial-loss-scale 65536
    --use-flash-attn --use-fused-rmsnorm --no-masked-softmax-fusion --attention-softmax-in-fp32
    --no-gradient-accumulation-fusion
"

torchrun $LAUNCH pretrain_gpt.py \
    "${MODEL_ARGS[@]}" \
    "${PARALLEL_ARGS[@]}" \
    $TRAINING_ARGS \
    --data-path "$DATA" --split 100,0,0 \
    --log-interval 1 --save-interval 1000 --eval-interval 1000 --eval-iters 0 \
    --distributed-backend nccl | tee train.log
