# An agent whose own start costs nothing (dash, about 1 ms): it answers initialize and session/new, so that a start
# of acpd in front of it is acpd's own start. Not an example: it takes the first "id": of a line for the request's.
while IFS= read -r line; do
    id=${line#*\"id\":}
    id=${id%%,*}
    case $line in
        *'"method":"initialize"'*) result='{"protocolVersion":1,"agentCapabilities":{},"authMethods":[]}' ;;
        *'"method":"session/new"'*) result='{"sessionId":"instant"}' ;;
        *'"id":'*) result='{}' ;;
        *) continue ;;
    esac
    printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$result"
done
