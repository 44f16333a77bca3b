# An agent that costs next to nothing (dash, under 1 MiB): one chunk for each prompt. It takes the first "id": of a line for the
# request's, and has one session.
while IFS= read -r line; do
    id=${line#*\"id\":}
    id=${id%%,*}
    case $line in
        *'"method":"session/prompt"'*)
            printf '%s\n' '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"one","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"a chunk"}}}}'
            result='{"stopReason":"end_turn"}' ;;
        *'"method":"initialize"'*) result='{"protocolVersion":1,"agentCapabilities":{},"authMethods":[]}' ;;
        *'"method":"session/new"'*) result='{"sessionId":"one"}' ;;
        *'"id":'*) result='{}' ;;
        *) continue ;;
    esac
    printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$result"
done
