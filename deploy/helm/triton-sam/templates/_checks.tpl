{{/* Values that fit the schema one by one, but not together. Each fault is one line that says what to do. */}}
{{- define "triton-sam.checks" -}}
{{- $v := .Values -}}
{{- $several := include "triton-sam.severalPods" . -}}
{{- $names := list -}}
{{- range $v.models -}}
{{- $variant := include "triton-sam.variant" . -}}
{{- if has $variant $names -}}
{{- fail (printf "models: two models are served as %q: give one of them a name" $variant) -}}
{{- end -}}
{{- $names = append $names $variant -}}
{{- if and (eq $v.modelStore.type "image") .config -}}
{{- fail "models: config needs a model store that can be written, so modelStore.type cannot be image" -}}
{{- end -}}
{{- end -}}
{{- if and (has $v.modelStore.type (list "s3" "gcs")) (not $v.modelStore.bucket.path) -}}
{{- fail (printf "modelStore.type %s needs modelStore.bucket.path, such as my-bucket/models" $v.modelStore.type) -}}
{{- end -}}
{{- if and $several (eq $v.modelStore.type "pvc") (not $v.modelStore.pvc.existingClaim) (not (has "ReadWriteMany" $v.modelStore.pvc.accessModes)) -}}
{{- fail "several pods need a volume for all: set modelStore.pvc.accessModes to [ReadWriteMany] (Kubernetes never changes an existing claim: then name another one as modelStore.pvc.existingClaim), or keep the models in a bucket" -}}
{{- end -}}
{{- if and $several (eq $v.engineCache.type "pvc") (not $v.engineCache.existingClaim) (not (has "ReadWriteMany" $v.engineCache.accessModes)) -}}
{{- fail "several pods need an engine cache for all: set engineCache.accessModes to [ReadWriteMany], or engineCache.type to emptyDir" -}}
{{- end -}}
{{- if and $v.rest.enabled (not $v.rest.token.existingSecret) (not $v.rest.token.value) (not $v.rest.token.open) -}}
{{- fail "rest.enabled needs a token: set rest.token.existingSecret, or rest.token.open to true to let everybody in" -}}
{{- end -}}
{{- if and $v.autoscaling.enabled (gt (int $v.autoscaling.minReplicas) (int $v.autoscaling.maxReplicas)) -}}
{{- fail "autoscaling.minReplicas is more than autoscaling.maxReplicas" -}}
{{- end -}}
{{- if and $v.ingress.enabled (or (not $v.ingress.host) (not $v.ingress.tlsSecret)) -}}
{{- fail "ingress.enabled needs ingress.host and, for TLS, ingress.tlsSecret" -}}
{{- end -}}
{{- if and $v.gateway.enabled (not $v.gateway.parentRefs) (not $v.gateway.create.enabled) -}}
{{- fail "gateway.enabled needs gateway.parentRefs, or gateway.create.enabled for a Gateway of its own" -}}
{{- end -}}
{{- if and $v.gateway.create.enabled (or (not $v.gateway.create.className) (not $v.gateway.create.tlsSecret)) -}}
{{- fail "gateway.create.enabled needs gateway.create.className and gateway.create.tlsSecret" -}}
{{- end -}}
{{- if and $v.gateway.canary.weight (not $v.gateway.canary.release) -}}
{{- fail "gateway.canary.weight needs gateway.canary.release, the full name of the second release" -}}
{{- end -}}
{{- if and (or $v.ingress.enabled $v.gateway.enabled) $v.networkPolicy.enabled (not $v.networkPolicy.gatewayNamespaces) (not $v.networkPolicy.extraIngress) -}}
{{- fail "networkPolicy.gatewayNamespaces must name the namespace of your gateway or ingress controller, or its requests are blocked" -}}
{{- end -}}
{{- if and (ne $v.service.type "ClusterIP") $v.networkPolicy.enabled (not $v.networkPolicy.extraIngress) -}}
{{- fail (printf "service.type %s needs networkPolicy.extraIngress with the addresses of its clients, or their requests are blocked" $v.service.type) -}}
{{- end -}}
{{- range $part := list (list "ingress" $v.ingress) (list "gateway" $v.gateway) (list "openshift.route" $v.openshift.route) -}}
{{- if and (index $part 1).enabled (eq (index $part 1).target "rest") (not $v.rest.enabled) -}}
{{- fail (printf "%s leads to the REST service, which does not run: set rest.enabled, or %s.target to triton" (index $part 0) (index $part 0)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
